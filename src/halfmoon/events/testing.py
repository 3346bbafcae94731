"""`MemoryBus`: a broker in memory for your tests, which loses what you tell it to lose, and whose time you move.

It carries a `Publisher`'s events and feeds `Consumers`, in this process and without a socket; the states of a message are those of
a broker (`halfmoon.events.memory.records`). Nothing happens by itself: `deliver`, `check_now`, `redeliver` and `advance` do it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from halfmoon.errors import UsageError
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.encoding.envelope import event_of
from halfmoon.events.event import Event
from halfmoon.events.memory.broker import CHECK_TIMES, MemoryBroker, apart
from halfmoon.events.memory.groups import Deliver, Job, Waiting
from halfmoon.events.memory.records import KEEP_MS, Member, Record, State, own_copy
from halfmoon.events.memory.transport import MemoryTransport
from halfmoon.limits import RECONSUME_MAX
from halfmoon.model import LocalTransactionState

MEMBERS_MAX = 10_000

AGAIN = 4
"""After OPEN the same member is asked again, but for one check in four."""

DELIVERIES_MAX = 100_000
"""Of one `deliver`: more means that consumers publish what they consume, without end."""

log = logging.getLogger("halfmoon.events")


class MemoryBus(MemoryBroker):
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
        super().__init__(int(check_after_s * 1000))
        self.checks_sent = 0
        self._interval_ms, self._checks_max, self._codecs = int(check_interval_s * 1000), checks_max, codecs or Codecs()
        self._turn = 0

    def transport(self, group: str) -> MemoryTransport:
        """Return a new member of a publisher group, the transport of a `Publisher`. Each stands for a process."""
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
        reconsume_max: int = RECONSUME_MAX,
    ) -> Callable[[], None]:
        """Have a member of a consumer group given messages; returns what ends it.

        ``topics`` gives for each topic the codes that are wanted, ``*`` for all. ``deliver(stored, attempt)`` returns whether the
        message is consumed, and the reason when it is not; raising is not. ``from_end``: topics of which a group is
        given only what is published from now on, if nobody of it is there. ``reconsume_max``: how often a message comes again.
        """
        with self.lock:
            end = len(self.visible)
            return self.groups.join(group, topics, deliver, skip=from_end, end=end, times_max=reconsume_max)

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
                consumed, reason = apart(job.member.deliver, own_copy(job.message), job.attempt)
            except Exception as exc:
                log.exception("a consumer failed: event=%s group=%s", job.message.msg_id, job.group)
                consumed, reason = False, f"{type(exc).__name__}: {exc}"
            with self.lock:
                self.groups.ended(job, consumed=consumed, reason=reason, now_ms=self.now_ms)
        return count

    def _next_job(self) -> Job | None:
        self.settle()
        with self.lock:
            self.show_due()
            return None if self.down else self.groups.next_job(self.visible, self.now_ms)

    def redeliver(self) -> int:
        """Give consumers now what was to come again later, once; returns how many were handed over, with what else was there."""
        with self.lock:
            self.groups.hurry(self.now_ms)
        return self.deliver()

    def check_now(self) -> int:
        """Ask about every undecided message, whatever its age; returns how many checks were sent.

        A message whose checks are used up expires instead. Without a living member of its group nothing is sent.
        """
        self.settle()
        return sum(self._check(record) for record in self.in_state(State.UNKNOWN))

    def advance(self, seconds: float) -> None:
        """Move time on; on the way everything happens that becomes due: checks, delayed messages, those that come again, expiry."""
        until = self.now_ms + int(seconds * 1000)
        self.deliver()
        while (due := self._due_ms()) is not None and due <= until:
            self.now_ms = max(self.now_ms, due)
            for record in self.in_state(State.UNKNOWN):
                if record.next_check_ms <= self.now_ms:
                    self._check(record)
            self.deliver()
        self.now_ms = max(self.now_ms, until)

    def resume(self, record: Record) -> None:
        """Have a message that expired checked again. Raises UsageError for one that was not."""
        with self.lock:
            if record.state is not State.EXPIRED:
                raise UsageError(f"{record!r} did not expire")
            record.state, record.checks, record.counted = State.UNKNOWN, 0, 0
            record.stored_ms, record.next_check_ms = self.now_ms, self.now_ms + self.check_after_ms

    # ------------------------------------------------------------ checks

    def _due_ms(self) -> int | None:
        """Return the time of the next thing that happens by itself."""
        with self.lock:
            times = [record.next_check_ms for record in self.in_state(State.UNKNOWN)]
            times += [waiting.due_ms for waiting in self.groups.waiting if waiting.due_ms > self.now_ms]
            delayed_ms = self.show_due()
        return min(times if delayed_ms is None else [*times, delayed_ms], default=None)

    def _check(self, record: Record) -> int:
        """Ask members about one message until one answers otherwise than NOT_MINE, or give it up; returns how many were asked."""
        walk: list[Member] = []
        while self._ask_next(record, walk):
            pass
        return len(walk)

    def _ask_next(self, record: Record, walk: list[Member]) -> bool:
        """Ask the next member of a walk and add it there; returns whether to go on."""
        with self.lock:
            record.next_check_ms = self.now_ms + self._interval_ms
            if record.state is not State.UNKNOWN or self.down:
                return False
            if record.counted >= self._checks_max or self.now_ms - record.stored_ms >= KEEP_MS:
                self.decide(record, State.EXPIRED)
                return False
            member = self._next_member(record, walk)
            if member is None:
                return False
            walk.append(member)
            record.checks, record.counted = record.checks + 1, record.counted + 1
            record.asked, record.open = member, False
            self.checks_sent += 1
            record.stored.properties[CHECK_TIMES] = str(record.checks)
        try:
            state = apart(member.ask, record)
        except Exception:
            log.exception("a check failed and is repeated: event=%s", record.id)
            return False
        if member.dead:
            return False
        if state in _DECISIONS:
            self.decide(record, _DECISIONS[state])
        elif state is LocalTransactionState.OPEN:
            record.counted, record.open = 0, True
        elif state is LocalTransactionState.NOT_MINE:
            record.counted = max(0, record.counted - 1)
            return True
        return False

    def _next_member(self, record: Record, walk: Collection[Member]) -> Member | None:
        """Return the living member of the group that is asked next. Follows `halfmoon.broker.transactions.walks`."""
        left = [one for one in self.members if one.group == record.group and one.answers and one not in walk]
        again = record.asked if record.open and record.checks % AGAIN else None
        for wanted in () if walk else (again, record.sender if record.asked is not record.sender else None):
            if wanted in left:
                return wanted
        others = [one for one in left if one is not record.sender] or left
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
        """Events that were not consumed and come again: ``group``, ``message``, ``attempt``, ``reason``, ``due_ms``."""
        with self.lock:
            return tuple(sorted(self.groups.waiting))

    @property
    def dead_letters(self) -> tuple[Waiting, ...]:
        """Events that were not consumed in 17 attempts, or one more than ``reconsume_max``, and does not come again."""
        with self.lock:
            return tuple(letter for group in self.groups.by_name.values() for letter in group.dead)

    def events(self, topic: str | None = None, code: str | None = None) -> list[Event]:
        """Return the events that consumers may see, decoded, in the order in which they became visible."""
        self.settle()
        with self.lock:
            messages = list(self.visible)
        events = [event_of(stored, self._codecs) for stored in messages]
        return [event for event in events if topic in (None, event.topic) and code in (None, event.code)]

    def consumed(self, group: str) -> list[Event]:
        """Return the events that a group has consumed, decoded, in that order."""
        with self.lock:
            messages = list(self.groups.by_name[group].consumed) if group in self.groups.by_name else []
        return [event_of(stored, self._codecs) for stored in messages]

    def event(self, record: Record) -> Event:
        """Return the event that a record carries, decoded."""
        return event_of(record.stored, self._codecs)

    def _in(self, state: State) -> tuple[Record, ...]:
        self.settle()
        return tuple(self.in_state(state))


_DECISIONS = {LocalTransactionState.COMMIT: State.COMMITTED, LocalTransactionState.ROLLBACK: State.ROLLED_BACK}
