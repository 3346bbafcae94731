"""`MemoryBus`: a broker in memory for your tests, which loses what you tell it to lose, and whose time you move.

It carries a `Publisher`'s events and feeds `Consumers`, in this process and without a socket; the states of a message are those of
a broker (`halfmoon.events.memory.records`). Nothing happens by itself: `deliver`, `check_now`, `redeliver` and `advance` do it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.encoding.envelope import event_of
from halfmoon.events.event import Event
from halfmoon.events.memory.broker import CHECK_TIMES, FOREVER, MemoryBroker
from halfmoon.events.memory.groups import Deliver, Job, Waiting
from halfmoon.events.memory.records import KEEP_MS, Decision, Record, State, Verdict, own_copy
from halfmoon.events.memory.transport import MemoryTransport
from halfmoon.limits import RECONSUME_MAX
from halfmoon.model import LocalTransactionState

T = TypeVar("T")

MEMBERS_MAX = 10_000

AGAIN = 4
"""After OPEN the same member is asked again, but for one check in four."""

DELIVERIES_MAX = 100_000
"""Of one `deliver`: more means that consumers publish what they consume, without end."""

log = logging.getLogger("halfmoon.events")


class MemoryBus:
    """A broker in memory.

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
        if check_after_s < 0 or check_interval_s < 0.001 or checks_max < 1:
            raise UsageError("check_after_s must be 0 or more, check_interval_s at least 0.001, checks_max at least 1")
        self.checks_sent = 0
        self._interval_ms, self._checks_max, self._codecs = int(check_interval_s * 1000), checks_max, codecs or Codecs()
        self._members: list[MemoryTransport] = []
        self._broker = MemoryBroker(int(check_after_s * 1000))
        self._lock, self._turn = self._broker.lock, 0

    @property
    def now_ms(self) -> int:
        """The bus's time, ms since the epoch. It stands still until `advance`."""
        return self._broker.now_ms

    @property
    def contradictions(self) -> int:
        """How many decisions were refused because the opposite had been decided."""
        self._settle()
        return self._broker.contradictions

    @property
    def repeats(self) -> int:
        """How many decisions said again what was decided, and messages were merged with the one of the same id."""
        self._settle()
        return self._broker.repeats

    def clear(self) -> None:
        """Forget every message. Publishers and consumers stay."""
        self._broker.clear()

    # ------------------------------------------------------------ who takes part

    def transport(self, group: str) -> MemoryTransport:
        """Return a new member of a publisher group: what a `Publisher` calls its transport. Each stands for a process."""
        with self._lock:
            if len(self._members) >= MEMBERS_MAX:
                raise UsageError(f"more than {MEMBERS_MAX} publishers on one bus")
            member = MemoryTransport(self._broker, group)
            self._members.append(member)
            return member

    def subscribe(
        self,
        group: str,
        topics: Mapping[str, Collection[str] | str],
        deliver: Deliver,
        *,
        from_end: Collection[str] = (),
        reconsume_max: int = RECONSUME_MAX,
    ) -> Callable[[], None]:
        """Have a member of a consumer group given messages; returns what ends it.

        ``topics`` gives for each topic the codes that are wanted, ``*`` for all. ``deliver(stored, attempt)`` returns whether the
        message is consumed, and the reason when it is not; raising is not. ``from_end``: topics of which a group is
        given only what is published from now on, if nobody of it is there. ``reconsume_max``: how often a message comes again.
        """
        with self._lock:
            join, end = self._broker.groups.join, len(self._broker.visible)
            return join(group, topics, deliver, skip=from_end, end=end, times_max=reconsume_max)

    def kill(self, publisher: Any) -> None:
        """Let a publisher's process die: what it has not said is never said, and it answers no checks.

        ``publisher`` is a `Publisher` or what `transport` returned. What it calls afterwards fails.
        """
        member = publisher if isinstance(publisher, MemoryTransport) else getattr(publisher, "transport", None)
        if not isinstance(member, MemoryTransport) or member not in self._members:
            raise UsageError(f"{publisher!r:.80} does not publish on this bus")
        _apart(member.settle)
        member.die()

    # ------------------------------------------------------------ faults

    def fail_next(self, phase: str, *, stored: bool = False, times: int = 1, error: HalfmoonError | None = None) -> None:
        """Let the next ``times`` calls of ``"prepare"`` or ``"send"`` fail; by default with a time-out.

        ``stored``: the answer is lost, the message is there. Otherwise the request is lost.
        """
        self._broker.fail_next(phase, stored, times, error)

    def lose_second_phase(self, times: int = FOREVER) -> None:
        """Lose the next ``times`` decisions on their way; without a number all, until `heal`."""
        self._settle()
        self._broker.lose(times)

    def go_down(self) -> None:
        """Be out of reach until `heal`: publishing fails, decisions are lost, nothing is checked or delivered."""
        self._settle()
        self._broker.down = True

    def heal(self) -> None:
        """From now on nothing fails and nothing is lost."""
        self._settle()
        self._broker.heal()

    # ------------------------------------------------------------ what happens

    def deliver(self) -> int:
        """Give consumers what is there for them now, and what their functions publish meanwhile; returns how much that was.

        Functions run in this thread, outside of its local transactions; in another one where an event loop runs in this.
        """
        count = 0
        while (job := self._next_job()) is not None:
            count += 1
            if count > DELIVERIES_MAX:
                raise UsageError(f"{DELIVERIES_MAX} deliveries and no end: does a consumer publish what it consumes?")
            try:
                consumed, reason = _apart(job.deliver, own_copy(job.message), job.attempt)
            except Exception as exc:
                log.exception("a consumer failed: event=%s group=%s", job.message.msg_id, job.group)
                consumed, reason = False, f"{type(exc).__name__}: {exc}"
            with self._lock:
                self._broker.groups.ended(job, consumed=consumed, reason=reason, now_ms=self.now_ms)
        return count

    def _next_job(self) -> Job | None:
        self._settle()
        with self._lock:
            broker = self._broker
            broker.show_due()
            return None if broker.down else broker.groups.next_job(broker.visible, broker.now_ms)

    def redeliver(self) -> int:
        """Give consumers now what was to come again later, once; returns how many were handed over, with what else was there."""
        with self._lock:
            self._broker.groups.hurry(self.now_ms)
        return self.deliver()

    def check_now(self) -> int:
        """Ask about every undecided message, whatever its age; returns how many checks were sent.

        A message whose checks are used up expires instead. Without a living member of its group nothing is sent.
        """
        self._settle()
        return sum(self._check(record) for record in self._broker.in_state(State.UNKNOWN))

    def advance(self, seconds: float) -> None:
        """Move time on; on the way everything happens that becomes due: checks, delayed messages, those that come again, expiry."""
        until = self.now_ms + int(seconds * 1000)
        self.deliver()
        while (due := self._due_ms()) is not None and due <= until:
            self._broker.now_ms = max(self.now_ms, due)
            for record in self._broker.in_state(State.UNKNOWN):
                if record.next_check_ms <= self.now_ms:
                    self._check(record)
            self.deliver()
        self._broker.now_ms = max(self.now_ms, until)

    def resume(self, record: Record) -> None:
        """Have a message that expired checked again. Raises UsageError for one that was not."""
        with self._lock:
            if self._broker.decide(record, Decision.RESUME) is not Verdict.TAKEN:
                raise UsageError(f"{record!r} did not expire")
            record.stored_ms, record.next_check_ms = self.now_ms, self.now_ms + self._broker.check_after_ms

    # ------------------------------------------------------------ checks

    def _due_ms(self) -> int | None:
        """When something happens by itself next."""
        with self._lock:
            checks = [record.next_check_ms for record in self._broker.in_state(State.UNKNOWN)]
            others = self._broker.groups.due_ms(self.now_ms), self._broker.show_due()
        return min([*checks, *(due_ms for due_ms in others if due_ms is not None)], default=None)

    def _check(self, record: Record) -> int:
        """Ask members about one message until one answers otherwise than NOT_MINE, or give it up; returns how many were asked."""
        walk: list[MemoryTransport] = []
        while self._ask_next(record, walk):
            pass
        return len(walk)

    def _ask_next(self, record: Record, walk: list[MemoryTransport]) -> bool:
        """Ask the next member of a walk and add it there; returns whether to go on."""
        with self._lock:
            record.next_check_ms = self.now_ms + self._interval_ms
            if record.state is not State.UNKNOWN or self._broker.down:
                return False
            if record.counted >= self._checks_max or self.now_ms - record.stored_ms >= KEEP_MS:
                self._broker.decide(record, Decision.EXPIRE)
                return False
            member = self._next_member(record, walk)
            if member is None:
                return False
            walk.append(member)
            record.checks, record.counted = record.checks + 1, record.counted + 1
            record.asked, record.open = member.client, False
            self.checks_sent += 1
            record.stored.properties[CHECK_TIMES] = str(record.checks)
        try:
            state = _apart(member.ask, record)
        except Exception:
            log.exception("a check failed and is repeated: event=%s", record.id)
            return False
        if member.dead:
            return False
        if state in _DECISIONS:
            self._broker.decide(record, _DECISIONS[state])
        elif state is LocalTransactionState.OPEN:
            record.counted, record.open = 0, True
        elif state is LocalTransactionState.NOT_MINE:
            record.counted = max(0, record.counted - 1)
            return True
        return False

    def _settle(self) -> None:
        """Have publishers decide what they can decide: of what a broker would have moments later, a test sees all."""
        for member in list(self._members):
            _apart(member.settle)

    def _next_member(self, record: Record, walk: Collection[MemoryTransport]) -> MemoryTransport | None:
        """Return the living member of the group that is asked next. Follows `halfmoon.broker.transactions.walks`."""
        left = [one for one in self._members if one.group == record.group and one.answers and one not in walk]
        again = record.asked if record.open and record.checks % AGAIN else ""
        for wanted in () if walk else (again, record.sender if record.asked != record.sender else ""):
            if (first := next((one for one in left if one.client == wanted), None)) is not None:
                return first
        others = [one for one in left if one.client != record.sender] or left
        self._turn += 1
        return others[self._turn % len(others)] if others else None

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
        """What was not consumed and comes again: ``group``, ``message``, ``attempt``, ``reason``, ``due_ms``."""
        with self._lock:
            return tuple(self._broker.groups.waiting())

    @property
    def dead_letters(self) -> tuple[Waiting, ...]:
        """What was not consumed in 17 attempts, or one more than ``reconsume_max``, and does not come again."""
        with self._lock:
            return tuple(self._broker.groups.dead())

    def events(self, topic: str | None = None, code: str | None = None) -> list[Event]:
        """Return the events that consumers may see, decoded, in the order in which they became visible."""
        self._settle()
        with self._lock:
            messages = list(self._broker.visible)
        events = [event_of(stored, self._codecs) for stored in messages]
        return [event for event in events if topic in (None, event.topic) and code in (None, event.code)]

    def consumed(self, group: str) -> list[Event]:
        """Return the events that a group has consumed, decoded, in that order."""
        with self._lock:
            messages = self._broker.groups.consumed(group)
        return [event_of(stored, self._codecs) for stored in messages]

    def event(self, record: Record) -> Event:
        """Return the event that a record carries, decoded."""
        return event_of(record.stored, self._codecs)

    def _in(self, state: State) -> tuple[Record, ...]:
        self._settle()
        return tuple(self._broker.in_state(state))


def _apart(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in an empty context. A check or a consumer may block, or begin a loop: in a thread that runs one, another
    thread does it, while this one waits."""
    context = contextvars.Context()
    if not _loop_runs():
        return context.run(function, *arguments)
    with ThreadPoolExecutor(1, "halfmoon-bus") as thread:
        return thread.submit(context.run, function, *arguments).result()


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_DECISIONS = {LocalTransactionState.COMMIT: Decision.COMMIT, LocalTransactionState.ROLLBACK: Decision.ROLLBACK}
