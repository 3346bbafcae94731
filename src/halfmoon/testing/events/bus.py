"""`MemoryBus`: a broker for tests of events, which loses what you tell it to lose, and whose time you move.

It is a `halfmoon.testing.world.World`: the real broker and clients in virtual time, in this process and without a socket. Carries a
`Publisher`'s events and feeds `Consumers`. Functions are called only in `deliver`, `check_now`, `redeliver` and `advance`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import msgspec

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.delay import delayed_messages
from halfmoon.client.core.admin.find import message_by_offset_id
from halfmoon.client.core.admin.transactions import (
    check_transaction,
    decide_transaction,
    expired_transactions,
    pending_transactions,
    resume_half,
    transaction_stats,
)
from halfmoon.client.core.instance import Instance
from halfmoon.client.settings import ClientSettings
from halfmoon.errors import (
    BrokerError,
    ConnectFailed,
    HalfmoonError,
    RequestTimeout,
    SystemBusy,
    UsageError,
)
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.encoding.envelope import event_of
from halfmoon.events.event import Event
from halfmoon.model import RECONSUME_REASON, ConsumeFrom, ConsumeStatus, Message, SendResult, StoredMessage
from halfmoon.testing.clients import nameservers
from halfmoon.testing.events.transport import BROKER_NAME, MemoryTransport
from halfmoon.testing.world import World, WorldProducer, WorldTransactionProducer, apart
from halfmoon.wire.headers.offset import UpdateConsumerOffset

T = TypeVar("T")

MESSAGES_MAX = 100_000
"""On one bus; a test that needs more clears it in between."""

MEMBERS_MAX = 10_000

FOREVER = 1_000_000_000

PULL_AGAIN_MS = 3_100
"""Virtual time after which consumers pull again that could not."""

Deliver = Callable[[StoredMessage, int], tuple[bool, str]]
"""Is given a message and which attempt it is, from 1; returns whether it is consumed, and the reason when it is not."""


class State(Enum):
    """State of a message at the broker."""

    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    EXPIRED = "expired"


class Waiting(NamedTuple):
    """A message that comes again at ``due_ms``, as attempt ``attempt``, because of ``reason``; or a dead letter."""

    due_ms: int
    group: str
    message: StoredMessage
    attempt: int
    reason: str


class Record(msgspec.Struct, eq=False):
    """A message that a publisher stored. ``seen`` and ``listed`` are state and number of checks at the last look."""

    bus: MemoryBus
    group: str
    message: Message
    result: SendResult
    transactional: bool
    seen: State
    listed: int = 0

    @property
    def state(self) -> State:
        """Its state at the broker."""
        self.bus.look()
        return self.seen

    @property
    def checks(self) -> int:
        """Number of checks that were sent."""
        self.bus.look()
        return max(self.listed, self.bus.asked[self.id])

    @property
    def id(self) -> str:
        """The event's id."""
        return self.result.msg_id

    @property
    def topic(self) -> str:
        """The topic."""
        return self.message.topic

    @property
    def code(self) -> str:
        """The event code."""
        return self.message.tag or ""

    @property
    def stored(self) -> StoredMessage:
        """The message as the broker stored it first."""
        half: StoredMessage = self.bus.ask_admin(message_by_offset_id, self.result.offset_msg_id)
        return replace(half, topic=self.topic)

    def __repr__(self) -> str:
        checks = max(self.listed, self.bus.asked[self.id])
        return f"<{self.seen.value} {self.topic}/{self.code} {self.id} of {self.group}, {checks} checks>"


class MemoryBus(World):
    """A broker for tests of events.

    ::

        def test_a_sold_book_is_mailed_once(halfmoon_events):
            bus = halfmoon_events
            shop = Publisher(group="P_shop", transport=bus, session=Session)
            with Consumers(mails, bus=bus):
                bus.lose_second_phase()
                shop.sell("b-1")
                assert [half.id for half in bus.pending]
                bus.check_now()
                bus.deliver()
            assert sent_mails() == ["b-1"]

    ``check_after_s``, ``check_interval_s`` and ``checks_max`` are a broker's: the age before which it does not ask, how often it
    asks, and after how many checks without an answer a message expires. ``codecs`` are those by which `events` reads payloads. Safe
    to use from many threads. Raises UsageError for numbers that cannot be.
    """

    def __init__(
        self, *, check_after_s: float = 6, check_interval_s: float = 60, checks_max: int = 15, codecs: Codecs | None = None
    ) -> None:
        if check_after_s < 0 or check_interval_s < 0.01 or checks_max < 1:
            raise UsageError("check_after_s must be 0 or more, check_interval_s at least 0.01, checks_max at least 1")
        super().__init__(
            transaction_timeout_ms=int(check_after_s * 1000),
            transaction_check_interval_ms=int(check_interval_s * 1000),
            transaction_check_max=checks_max,
        )
        self.members: list[MemoryTransport] = []
        self.records: list[Record] = []
        self.asked: Counter[str] = Counter()
        """Checks that members were asked, by id."""
        self._stored: set[str | None] = set()
        self.down = False
        self._codecs = codecs or Codecs()
        settings = ClientSettings(nameserver=nameservers(self.cluster))
        self._admin = AdminCore(Instance(settings, "admin@1", self.cluster.timeline.split("admin")))
        self._cleared_ms = self._delivered = self._losing = 0
        self._faults: dict[str, list[tuple[bool, HalfmoonError]]] = {"send": [], "prepare": []}
        self._topics: set[str] = set()
        self._begins: dict[str, dict[int, int]] = {}
        """Where the messages since the last `clear` begin, by topic and queue."""
        self._subscribed: dict[str, int] = {}
        """Number of members of each consumer group here."""
        self._consumed: dict[str, list[StoredMessage]] = {}

    def transport(self, group: str) -> MemoryTransport:
        """Return a new member of a publisher group: what a `Publisher` calls its transport. Each stands for a process."""
        with self.lock:
            if len(self.members) >= MEMBERS_MAX:
                raise UsageError(f"more than {MEMBERS_MAX} publishers on one bus")
            member = MemoryTransport(self, group)
            self.members.append(member)
            return member

    def subscribe(
        self,
        group: str,
        topics: Mapping[str, Collection[str] | str],
        deliver: Deliver,
        *,
        from_end: Collection[str] = (),
        **settings: Any,
    ) -> Callable[[], None]:
        """Have a member of a consumer group given messages; returns what ends it.

        ``topics`` gives for each topic the codes that are wanted, ``*`` for all. ``deliver(stored, attempt)`` returns whether the
        message is consumed, and the reason when it is not; raising is not. ``from_end``: topics of which a group is given only what
        is published from now on, if nobody of it is there. ``settings`` are `PushSettings`.
        """
        wanted = {topic: codes if isinstance(codes, str) else " || ".join(codes) for topic, codes in topics.items()}
        consumed = self._consumed.setdefault(group, [])

        def listen(messages: list[StoredMessage], context: Any) -> ConsumeStatus:
            (message,) = messages
            if message.born_ms < self._cleared_ms:
                return ConsumeStatus.CONSUME_SUCCESS
            self._delivered += 1
            done, context.reason = deliver(message, message.reconsume_times + 1)
            if not done:
                return ConsumeStatus.RECONSUME_LATER
            consumed.append(message)
            return ConsumeStatus.CONSUME_SUCCESS

        with self.lock:
            for topic in wanted:
                self.ensure_topic(topic)
            if not self._subscribed.get(group):
                for topic in from_end:
                    self._skip(group, topic)
            self._subscribed[group] = self._subscribed.get(group, 0) + 1
            settings = {"group": group, "consume_from": ConsumeFrom.FIRST_OFFSET, **settings}
            consumer = self.subscriber(wanted, listen, **settings)

        def leave() -> None:
            with self.lock:
                self._subscribed[group] -= 1
                consumer.close()

        return leave

    def ensure_topic(self, topic: str) -> None:
        """Make a topic of one queue, unless it is known."""
        if topic not in self._topics:
            self.create_topic(topic)
            self._topics.add(topic)

    def _skip(self, group: str, topic: str) -> None:
        for queue_id, end in self.ends(topic).items():
            move = UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=end)
            self.cluster.request(self.cluster.brokers[0].address, move)

    def ask_admin(self, operation: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run an operation of `halfmoon.client.core.admin`. Raises what it raises."""
        return self.ask(operation(self._admin, *arguments, **options))

    # ------------------------------------------------------------ what happens

    def deliver(self) -> int:
        """Give consumers what is there for them now, and what their functions publish meanwhile; returns how much that was.

        Functions run in this thread, outside of its local transactions; in another one where an event loop runs in this.
        """
        before = self._delivered
        self.let_publishers_decide()
        if not self.down:
            self.settle()
        return self._delivered - before

    def redeliver(self) -> int:
        """Let time pass until what was to come again later has come; returns how many were handed over, with all else."""
        before = self._delivered
        due_ms = max((waiting.due_ms for waiting in self.waiting), default=0)
        self.advance(max(0, due_ms - self.now_ms) / 1000)
        return self._delivered - before

    def check_now(self) -> int:
        """Ask about every undecided message, whatever its age; returns how many checks were sent.

        Without a living member of its group nothing is sent.
        """
        before = self.checks_sent
        for record in () if self.down else self.pending:
            try:
                self.ask_admin(check_transaction, record.result.queue_offset)
            except BrokerError:  # nobody is there to be asked
                continue
            self.settle(checks_only=True)
        return self.checks_sent - before

    def advance(self, duration: Any) -> None:
        """Move time on: seconds or a text such as ``31 min``; everything happens on the way that becomes due."""
        self.let_publishers_decide()
        super().advance(duration)

    def resume(self, record: Record) -> None:
        """Have a message that expired checked again. Raises UsageError for one that did not."""
        found = [one.offset_msg_id for one in self._expired() if one.msg_id == record.id]
        if not found:
            raise UsageError(f"{record!r} did not expire")
        self.ask_admin(resume_half, found[-1])

    def clear(self) -> None:
        """Forget every message. Publishers and consumers stay."""
        with self.lock:
            for one in self.ask_admin(pending_transactions, count_max=MESSAGES_MAX):
                self.ask_admin(decide_transaction, one.index, commit=False, operator="clear")
            self._run(lambda: False, 2)
            self._cleared_ms = self.now_ms
            self._begins = {topic: self.ends(topic) for topic in self._topics}
            self.records = []
            self._stored.clear()
            self.asked.clear()
            for consumed in self._consumed.values():
                consumed.clear()

    # ------------------------------------------------------------ publishers

    def kill(self, part: Any = "broker", *, power: bool = False) -> None:
        """Let a publisher's process die: what it has not said is never said, and it answers no checks. Or a part of the world.

        ``part`` is a `Publisher` or what `transport` returned. What it calls afterwards fails.
        """
        if isinstance(part, str | WorldProducer):
            super().kill(part, power=power)
            return
        member = getattr(part, "transport", part)
        if member not in self.members:
            raise UsageError(f"{part!r:.80} does not publish on this bus")
        apart(member.settle)
        member.dead = True
        member.end()

    def end(self, producer: WorldTransactionProducer) -> None:
        """End the process of a producer."""
        super().kill(producer)

    def let_publishers_decide(self) -> None:
        """Have publishers decide what they can decide: of what a broker would have moments later, a test sees all."""
        for member in list(self.members):
            apart(member.settle)

    # ------------------------------------------------------------ faults

    def fail_next(self, phase: str, *, stored: bool = False, times: int = 1, error: HalfmoonError | None = None) -> None:
        """Let the next ``times`` calls of ``"prepare"`` or ``"send"`` fail; by default with a time-out.

        ``stored``: the answer is lost, the message is there. Otherwise the request is lost. Raises UsageError for another phase,
        or too many times.
        """
        if phase not in self._faults:
            raise UsageError(f"phase must be 'prepare' or 'send', not {phase!r:.40}; for decisions see lose_second_phase()")
        if not 1 <= times <= MESSAGES_MAX:
            raise UsageError(f"times must be 1 to {MESSAGES_MAX}, not {times!r:.40}")
        what = "the answer" if stored else "the request"
        with self.lock:
            self._faults[phase] += [(stored, error or RequestTimeout(f"{what} was lost (injected fault)", BROKER_NAME))] * times

    def lose_second_phase(self, times: int = FOREVER) -> None:
        """Lose the next ``times`` decisions on their way; without a number all, until `heal`."""
        self.let_publishers_decide()
        self._losing = times

    def go_down(self) -> None:
        """Be out of reach until `heal`: publishing fails, decisions are lost, nothing is checked or delivered."""
        self.let_publishers_decide()
        with self.lock:
            self.down = True
            network, broker = self.cluster.network, self.cluster.brokers[0].host.host
            stay = {self.cluster.client_hosts[0], *(server.host for server in self.cluster.nameservers)}  # the first one looks
            for end in network.connections(broker):
                if end.other.host not in stay:
                    network.lose(end)
            self._run(lambda: False, 1)  # both sides hear of it
            network.cut_off(broker, stay)

    def heal(self) -> None:
        """From now on nothing fails and nothing is lost."""
        self.let_publishers_decide()
        with self.lock:
            super().heal()
            self.cluster.network.heal()
            was_down, self._losing, self.down = self.down, 0, False
            for faults in self._faults.values():
                faults.clear()
            if was_down:
                for client in list(self._clients.values()):
                    self.ask(client.instance.beat(), client)  # the broker forgot it with its connection
                self._run(lambda: False, PULL_AGAIN_MS)

    def store(self, member: MemoryTransport, message: Message, phase: str, send: Callable[[], T]) -> T:
        """Have a message stored by ``send()`` and keep a record of it, unless this is to fail. Raises what sending raises."""
        with self.lock:
            if self.down:
                raise ConnectFailed("the bus is down (injected fault)", BROKER_NAME)
            if len(self.records) >= MESSAGES_MAX:
                raise SystemBusy(f"{MESSAGES_MAX} messages are on this bus: call clear() in between")
            stored, error = self._faults[phase].pop(0) if self._faults[phase] else (True, None)
            if error is not None and not stored:
                raise error
            self.ensure_topic(message.topic)
            found: Any = send()
            transactional = phase == "prepare"
            result: SendResult = found.result if transactional else found
            if result.offset_msg_id not in self._stored:  # else it was a repeat
                self._stored.add(result.offset_msg_id)
                state = State.UNKNOWN if transactional else State.COMMITTED
                self.records.append(Record(self, member.group, message, result, transactional, state))
            if error is not None:
                if transactional:
                    member.leave(found)
                raise error
            return found  # type: ignore[no-any-return]

    def arrives(self) -> bool:
        """Return whether a decision arrives, or is to be lost on its way."""
        with self.lock:
            lost = self.down or self._losing > 0
            self._losing -= self._losing > 0
            return not lost

    # ------------------------------------------------------------ what is there

    @property
    def pending(self) -> tuple[Record, ...]:
        """Half messages that nobody has decided, the oldest first."""
        return self._in(State.UNKNOWN)

    @property
    def committed(self) -> tuple[Record, ...]:
        """Messages that consumers may see, transactional or not, in the order in which they were stored."""
        return self._in(State.COMMITTED)

    @property
    def rolled_back(self) -> tuple[Record, ...]:
        """Half messages that were rolled back."""
        return self._in(State.ROLLED_BACK)

    @property
    def expired(self) -> tuple[Record, ...]:
        """Half messages that expired; `resume` has one checked again."""
        return self._in(State.EXPIRED)

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Events that were not consumed and come again: ``group``, ``message``, ``attempt``, ``reason``, ``due_ms``."""
        listed = self.ask_admin(delayed_messages, count_max=MESSAGES_MAX).messages
        parked = [(one.due_ms, self.ask_admin(message_by_offset_id, one.offset_msg_id)) for one in listed if "%RETRY%" in one.topic]
        return tuple(
            _waiting(message.properties.get("REAL_TOPIC", "").removeprefix("%RETRY%"), message, due_ms)
            for due_ms, message in parked
            if message.born_ms >= self._cleared_ms
        )

    @property
    def dead_letters(self) -> tuple[Waiting, ...]:
        """Events that were not consumed in 17 attempts, or one more than ``reconsume_max``, and do not come again."""
        letters = [(group, message) for group in self._consumed for message in self.messages(f"%DLQ%{group}")]
        return tuple(
            _waiting(group, message, message.store_ms)._replace(attempt=message.reconsume_times)
            for group, message in letters
            if message.born_ms >= self._cleared_ms
        )

    @property
    def checks_sent(self) -> int:
        """Number of checks that were sent."""
        return self._counter("checks_sent")

    @property
    def contradictions(self) -> int:
        """Number of decisions that were refused because the opposite had been decided."""
        return self._counter("contradictions")

    def events(self, topic: str | None = None, code: str | None = None) -> list[Event]:
        """Return the events that consumers may see, decoded, in the order in which they became visible."""
        self.let_publishers_decide()
        wanted = sorted(self._topics) if topic is None else [topic]
        messages = [one for each in wanted for one in self._visible(each)]
        events = [event_of(stored, self._codecs) for stored in sorted(messages, key=lambda one: one.physical_offset)]
        return [event for event in events if code in (None, event.code)]

    def consumed(self, group: str) -> list[Event]:
        """Return the events that a group has consumed, decoded, in that order."""
        return [event_of(stored, self._codecs) for stored in self._consumed.get(group, ())]

    def event(self, record: Record) -> Event:
        """Return the event that a record carries, decoded."""
        return event_of(record.stored, self._codecs)

    def _visible(self, topic: str) -> list[StoredMessage]:
        return self.messages(topic, self._begins.get(topic))

    def _counter(self, name: str) -> int:
        return sum(of_broker.counters.get(name, 0) for of_broker in self.ask_admin(transaction_stats))

    def _expired(self) -> list[Any]:
        found = self.ask_admin(expired_transactions, count_max=MESSAGES_MAX)
        return [one for one in found if not (one.resumed or one.committed)]

    def _in(self, state: State) -> tuple[Record, ...]:
        self.look()
        with self.lock:
            return tuple(record for record in self.records if record.seen is state)

    def look(self) -> None:
        """Look what became of what was undecided."""
        self.let_publishers_decide()
        with self.lock:
            undecided = [record for record in self.records if record.seen in (State.UNKNOWN, State.EXPIRED)]
            if undecided:
                pending = {one.msg_id: one for one in self.ask_admin(pending_transactions, count_max=MESSAGES_MAX)}
                expired = {one.msg_id for one in self._expired()}
                visible = {one.msg_id for topic in {record.topic for record in undecided} for one in self._visible(topic)}
            for record in undecided:
                if record.id in pending:
                    record.seen, record.listed = State.UNKNOWN, len(pending[record.id].checks)
                elif record.id in expired:
                    record.seen = State.EXPIRED
                else:
                    record.seen = State.COMMITTED if record.id in visible else State.ROLLED_BACK


def _waiting(group: str, message: StoredMessage, due_ms: int) -> Waiting:
    topic, reason = message.properties.get("RETRY_TOPIC", message.topic), message.properties.get(RECONSUME_REASON, "")
    return Waiting(due_ms, group, replace(message, topic=topic), message.reconsume_times + 1, reason)
