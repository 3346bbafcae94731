"""`Feeding`: the core behind the replication port of a master. Sends the log to each slave and notes how far each has copied it.

A slave says nothing until it has reported the end of its log; from there it gets the log in chunks, a bounded amount ahead of its
last report. Nothing is copied in memory: a chunk is a view of the log file. A slave of ours also gets what the broker keeps beside
the log (`halfmoon.broker.copies.states`), and a stamp once it was sent everything. Who may copy is decided by
`halfmoon.broker.copies.admission`.
Follows DefaultHAService and DefaultHAConnection (RocketMQ 4.9.8).
Differs: a report behind the end of what was sent, or below an earlier one, ends the connection and is logged; so does the first
report of a slave whose log begins before ours or ends behind it, where the original sends nothing for ever or loops.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from halfmoon.broker.copies.admission import Admission
from halfmoon.broker.copies.reach import Reach
from halfmoon.broker.copies.states import States
from halfmoon.broker.settings import BrokerRole, BrokerSettings
from halfmoon.effects import Close, CoreEffect, Op, Write, sleep, steady
from halfmoon.instant import LONG_AGO, Instant, Steady
from halfmoon.logs import RateLimitedLog
from halfmoon.store.store import Store
from halfmoon.wire.copying import CHUNK_HEADER, FRAME, LOG, NOBODY, STAMP, STATE, WHOLE_LOG, Hello, Report, ReportReader

log = logging.getLogger("halfmoon.broker")

SLAVES_MAX = 64
"""Slaves of one master. Each has a connection and a bounded window of the log."""
WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes that are sent ahead of a slave's last report."""
TURN_BYTES = 1024 * 1024
"""Bytes that one slave is sent in one turn, so that producers are answered in between."""
LOOK_MS = 500
"""Pause between two looks at tables that the broker itself saves less often: the progress of groups."""
GATHER_BYTES = 256 * 1024
"""Bytes that do not wait for more: a turn of a slave costs as much as 20 messages."""
GATHER_MS = 5
"""Longest time that bytes for which nobody waits are gathered."""
CATCH_UP_BYTES, CATCH_UP_MS = 128 * 1024, 1
"""While the master stores, a slave that is far behind gets so much in so many milliseconds, or twice what is stored meanwhile."""
PREFETCH_BYTES = 4 * 1024 * 1024
"""Distance ahead of such a slave at which the log is read from the disk, so that sends do not wait for that."""
BUSY_MS = 100
"""Time after the last message that was stored in which the master counts as one that stores."""
LAST_COPIES_MS = 2_000
"""Longest time that a clean stop waits for slaves to copy the end of the log."""
_LAST_COPIES_STEP_MS = 10
_MARKS_MAX = 600
"""Ends of the log that are remembered with their time, to tell how many seconds a slave is behind: one a tenth of a second."""
_MARK_MS = 100


class SlaveStatus(NamedTuple):
    """Progress of one slave in the log."""

    remote: str
    sent_offset: int
    copied_offset: int
    behind_bytes: int
    behind_ms: int
    bytes_per_second: int
    """Sent in the last whole second in which there was something to send."""
    is_in_sync: bool
    """True if it has reported, and is not too far behind to be waited for."""


class Slave:
    """A connection to the replication port."""

    __slots__ = (
        "_member", "_second", "_sent", "copied", "heard", "heard_at", "is_slow", "next", "rate", "remote", "reported", "reports",
        "saw_end", "sent_at", "stamp", "stamped_at", "states", "states_sent", "waits_until",
    )  # fmt: skip

    def __init__(self, remote: str, at: Steady) -> None:
        self.remote, self.reports = remote, ReportReader()
        self.next: int | None = None
        """Offset of the next byte to send; None: it has not reported yet."""
        self.copied = self.reported = 0
        """Up to where it has the log; and its last report, which stays 0 until an empty slave got its first bytes."""
        self.sent_at = self.heard_at = at
        self.waits_until, self.saw_end = LONG_AGO, 0
        """When bytes that nobody waits for are sent next, if they are few or very many; where the log ended when some were sent."""
        self.heard = False
        self.is_slow = False
        self.rate, self._second, self._sent = 0, at, 0
        self.states = self.states_sent = self.stamp = 0
        """Changes that one of ours has saved, those that it was sent, and the last stamp that came back."""
        self.stamped_at = Steady(0)
        self._member: str | None = None

    @property
    def hello(self) -> Hello | None:
        """Return how a slave of ours began; None: it is one of RocketMQ."""
        return self.reports.hello

    @property
    def member(self) -> str | None:
        """Return the id of a member of a pair; None: it is another slave, which may never become the master."""
        if self._member is None and (hello := self.reports.hello) is not None:
            self._member = "" if hello.member == NOBODY else hello.member.hex()
        return self._member or None

    def count_sent(self, size: int, now: Steady) -> None:
        """Count bytes that are sent now."""
        if now - self._second >= 1000:
            self.rate = self._sent * 1000 // (now - self._second)
            self._second, self._sent = now, 0
        self._sent += size


class Pairing(Protocol):
    """The other member of a pair, for who feeds it: `halfmoon.broker.pairs.pair.Pair`."""

    def refusal(self, hello: Hello) -> str | None:
        """Return why a slave of ours may not copy; None: it may."""

    @property
    def stamp_ms(self) -> int:
        """Interval of stamps."""

    @property
    def waited_for(self) -> frozenset[str]:
        """Return the members whose copies are waited for."""

    def turn(self, now: Instant) -> None:
        """Take what slaves have reported."""

    def due(self, now: Steady) -> Steady | None:
        """When `turn` is to be called, whatever comes."""


class Feeding:
    """The slaves of one master, as a `halfmoon.ports.Core` with a port of its own.

    ``wake`` has its loop run a turn, and is set by the program; the broker calls it through `stored`. ``on_copied`` is called in a
    turn in which `copied_offset` grew.
    """

    def __init__(self, settings: BrokerSettings, store: Store, states: States, admission: Admission, now: Instant) -> None:
        self._settings, self._store, self.states, self._admission = settings, store, states, admission
        states.on_change = self._changed
        self._now = self._look_at = now.steady
        self.wake: Callable[[], None] = _nothing
        self.on_copied: Callable[[], None] = _nothing
        self.pair: Pairing | None = None
        self.reach = Reach(f"{settings.address}:{settings.port}")
        self.slaves: dict[int, Slave] = {}
        """By connection."""
        self._effects: list[CoreEffect] = []
        self._warnings = RateLimitedLog(log, now.steady)
        self._told_end, self._told_at, self._copied = store.end_offset, LONG_AGO, 0
        self._marks: deque[tuple[int, Steady]] = deque(maxlen=_MARKS_MAX)

    # ------------------------------------------------------------ facts

    @property
    def copied_offset(self) -> int:
        """Offset up to which as many slaves as are wanted have copied the log. It does not fall when they are lost."""
        return self._copied

    @property
    def is_behind(self) -> bool:
        """Return whether fewer slaves than are wanted are connected, or they lack so much that nobody is to wait for them."""
        behind = self._store.end_offset - self._copied >= self._settings.slave_behind_max_bytes
        return behind or self.count < self._settings.copies_wanted - 1

    @property
    def count(self) -> int:
        """Return the number of slaves that are connected and have reported."""
        return sum(slave.next is not None for slave in self.slaves.values())

    def statuses(self, now: Steady) -> list[SlaveStatus]:
        """Return how far each slave has copied the log, in the order of their connections."""
        end = self._store.end_offset
        return [
            SlaveStatus(
                slave.remote, slave.next or 0, slave.copied, max(0, end - slave.copied), self._behind_ms(slave, now), slave.rate,
                slave.next is not None and end - slave.copied < self._settings.slave_behind_max_bytes,
            )
            for slave in self.slaves.values()
        ]  # fmt: skip

    def _behind_ms(self, slave: Slave, now: Steady) -> int:
        """Return for how long the log has held bytes that a slave lacks; at least that long, if its first one is forgotten."""
        if slave.copied >= self._store.end_offset:
            return 0
        return next((now - at for end, at in self._marks if end > slave.copied), 0)

    def stored(self, now: Steady) -> None:
        """Note that the log may be longer than before, and have it sent."""
        end = self._store.end_offset
        if end != (told := self._told_end):
            self._told_end, self._told_at = end, now
            if not self._marks or now - self._marks[-1][1] >= _MARK_MS:
                self._marks.append((end, now))
            if any(slave.next == told or not self._waits(slave, now) for slave in self.slaves.values()):
                self.wake()

    @property
    def _has_ours(self) -> bool:
        return any(slave.hello is not None for slave in self.slaves.values())

    def _changed(self) -> None:
        """Have a change beside the log sent."""
        if self._has_ours:
            self.wake()

    # ------------------------------------------------------------ connections

    def start(self, now: Instant) -> None:
        """Nothing to begin."""

    def connected(self, peer: int, remote: str, now: Instant) -> None:
        """Take in a slave, which is sent nothing until it has reported, and signed if it has to."""
        self._now = now.steady
        self._warnings.tick(now.steady)
        if self._admission.connected(peer, remote, now.steady):
            self._take_in(peer, Slave(remote, now.steady))

    def _take_in(self, peer: int, slave: Slave) -> bool:
        """Take in a slave that may copy; return whether there is room for it."""
        if len(self.slaves) >= SLAVES_MAX:
            self._refuse(peer, slave, f"there are {SLAVES_MAX} slaves already")
            return False
        self.slaves[peer] = slave
        self.reach.met("the slave at", slave.remote)
        return True

    def certified(self, peer: int, names: tuple[str, ...]) -> None:
        """Note the names in a certificate, for a connection that has to say whose it is."""
        self._admission.certified(peer, names)

    def feed(self, peer: int, data: bytes) -> None:
        """Read reports; of a connection that may not copy yet, who it is."""
        if (slave := self.slaves.get(peer)) is not None:
            self._read(peer, slave, slave.reports.read(data))
        elif (admitted := self._admission.feed(peer, data)) is not None:
            slave = Slave(admitted.remote, self._now)
            slave.reports = admitted.reader
            if self._take_in(peer, slave):
                self._read(peer, slave, admitted.reports)

    def rules_changed(self) -> None:
        """Cut slaves whose account may not copy any more."""
        for peer, reason in self._admission.revoked():
            slave = self.slaves.pop(peer, None)
            self._admission.refuse(peer, "" if slave is None else slave.remote, reason)
            self.wake()

    def _read(self, peer: int, slave: Slave, reports: list[Report]) -> None:
        """Take what a slave said."""
        slave.heard, store = True, self._store
        if slave.next is None and (hello := slave.hello) is not None:
            if self.pair is not None and (refusal := self.pair.refusal(hello)) is not None:
                self._refuse(peer, slave, refusal)
                return
            if (reason := self._take(slave, Report(hello.offset, 0, 0))) is not None:
                self._refuse(peer, slave, reason)
                return
            slave.reported = min(max(hello.kept, 0), slave.copied)
            slave.copied = max(slave.reported, min(store.min_offset, slave.copied))
            self.states.look()
        for report in reports:
            if (reason := self._take(slave, report)) is not None:
                self._refuse(peer, slave, reason)
                return

    def _take(self, slave: Slave, report: Report) -> str | None:
        """Take a report; return why it cannot be true."""
        store, offset = self._store, report.offset
        if not (
            slave.states <= report.states <= slave.states_sent
            and slave.stamp <= report.stamp
            and Steady(report.stamp) <= slave.stamped_at
        ):
            return f"it reports {report}, but was sent {slave.states_sent} states"
        slave.states, slave.stamp = report.states, report.stamp
        if slave.next is None:
            if not (offset in (0, WHOLE_LOG) or store.min_offset <= offset <= store.end_offset):
                return (
                    f"its log ends at {offset}, but this log is from {store.min_offset} to {store.end_offset}: "
                    "it is behind or ahead, or another broker's"
                )
            slave.next = store.min_offset if offset == WHOLE_LOG else offset or self._start_of_last_file()
            slave.copied, slave.saw_end = slave.next, store.end_offset
            log.info("slave connected: peer=%s from_offset=%d", slave.remote, slave.next)
        elif not slave.reported <= offset <= slave.next:
            return f"it reports offset {offset}, but reported {slave.reported} before and was sent the log up to {slave.next}"
        slave.reported, slave.copied = offset, max(offset, slave.copied)
        return None

    def _start_of_last_file(self) -> int:
        segments = self._store.log.segments
        return segments.base(max(self._store.end_offset - 1, self._store.min_offset))

    def _refuse(self, peer: int, slave: Slave, reason: str) -> None:
        self.slaves.pop(peer, None)
        self._effects.append(Close(peer, reason))
        self._warnings.warning("slave refused: peer=%s reason=%s", slave.remote, reason)

    def slow(self, peer: int, *, is_slow: bool) -> None:
        """Note that a slave does not read, or does again."""
        if (slave := self.slaves.get(peer)) is not None:
            slave.is_slow = is_slow

    def unanswered(self, peer: int) -> bool:
        """Return False: nothing is owed to a slave that ended its stream."""
        return False

    def lost(self, peer: int, now: Instant) -> None:
        """Forget a slave that is gone."""
        self._admission.lost(peer)
        if (slave := self.slaves.pop(peer, None)) is not None and slave.next is not None:
            self._warnings.warning("slave lost: peer=%s copied_offset=%d", slave.remote, slave.copied)

    # ------------------------------------------------------------ turns

    def commit(self, now: Instant) -> bool:
        """Send each slave what it lacks, up to a bound; return whether more can be sent at once."""
        self._now, more = now.steady, False
        for peer, slave in list(self.slaves.items()):
            if slave.heard:
                slave.heard, slave.heard_at = False, now.steady
            more |= self._send(peer, slave, now.steady)
        reported = sorted((slave.copied for slave in self.slaves.values() if slave.next is not None), reverse=True)
        wanted = self._settings.copies_wanted - 1
        if 0 < wanted <= len(reported) and reported[wanted - 1] > self._copied:
            self._copied = reported[wanted - 1]
            self.on_copied()
        if self.pair is not None:
            kept = self._store.kept_offset
            self.pair.turn(now)
            more |= self._store.kept_offset > kept and not all(map(self._may_be_next, self.slaves.values()))
        return more

    def _send(self, peer: int, slave: Slave, now: Steady) -> bool:
        """Send a slave what it lacks, up to a bound; return whether it lacks more that may be sent."""
        if slave.next is None or slave.is_slow:
            return False
        store = self._store
        if slave.hello is not None:
            self._send_states(peer, slave)
        if slave.next < store.min_offset:
            self._refuse(peer, slave, f"it needs offset {slave.next}, but the oldest file begins at {store.min_offset}")
            return False
        if self._waits(slave, now):
            return False
        end = min(self._end_for(slave), slave.copied + WINDOW_BYTES)
        size, pause_ms = TURN_BYTES, GATHER_MS
        if catches_up := self._catches_up(slave, now):
            size, pause_ms = max(CATCH_UP_BYTES, 2 * (store.end_offset - slave.saw_end)), CATCH_UP_MS
        stop = min(end, slave.next + min(size, TURN_BYTES))
        start = slave.next
        if chunks := list(self._chunks(slave, stop)):
            slave.count_sent(stop - slave.next, now)
            slave.next, slave.sent_at, slave.waits_until, slave.saw_end = stop, now, now + pause_ms, store.end_offset
            self._effects.append(Write(peer, chunks))
            if catches_up:
                store.log.segments.prefetch(stop + PREFETCH_BYTES - (stop - start), stop - start)
        if self.pair is not None and self._has_everything(slave) and now - slave.stamped_at >= self.pair.stamp_ms:
            self._heartbeat(peer, slave, now)
        return stop < end

    def _end_for(self, slave: Slave) -> int:
        """Return where the log ends for a slave: for one beside a pair, and a spare, what the next master may cut is not there."""
        store = self._store
        return store.end_offset if self.pair is None or self._may_be_next(slave) else min(store.end_offset, store.kept_offset)

    def _may_be_next(self, slave: Slave) -> bool:
        """Return whether a slave is waited for, or may join because nobody is: then everything is kept."""
        assert self.pair is not None
        waited_for = self.pair.waited_for
        return slave.member in waited_for or (not waited_for and slave.member is not None)

    def _waits(self, slave: Slave, now: Steady) -> bool:
        """Return whether what a slave lacks is sent later: nobody waits for its copy, and it is little, or very much."""
        if slave.next is None or now >= slave.waits_until:
            return False
        if self._store.end_offset - slave.next < GATHER_BYTES:
            return self.pair is None and self._settings.role is BrokerRole.ASYNC_MASTER
        return self._catches_up(slave, now)

    def _catches_up(self, slave: Slave, now: Steady) -> bool:
        """Return whether a slave is so far behind that nobody waits for its copy, while others wait for the master."""
        assert slave.next is not None
        lacks = self._store.end_offset - slave.next
        if lacks < WINDOW_BYTES or now - self._told_at >= BUSY_MS:
            return False
        if self.pair is not None:
            return slave.member not in self.pair.waited_for
        return self._settings.role is BrokerRole.ASYNC_MASTER or lacks >= self._settings.slave_behind_max_bytes

    def _send_states(self, peer: int, slave: Slave) -> None:
        """Send what changed beside the log. It goes first: a row says what the log is about to get."""
        assert slave.next is not None
        for number, at, data in self.states.since(slave.states_sent, slave.next):
            slave.states_sent = number
            self._effects.append(Write(peer, [FRAME.pack(STATE, at, len(data)), data]))

    def _chunks(self, slave: Slave, stop: int) -> Iterator[Any]:
        """Yield the log up to ``stop`` as headers and views; a chunk does not cross the end of a log file."""
        segments, size_max, start = self._store.log.segments, self._settings.slave_chunk_bytes, slave.next
        assert start is not None
        is_ours = slave.hello is not None
        while start < stop:
            size = min(size_max, stop - start, segments.base(start) + segments.file_bytes - start)
            yield FRAME.pack(LOG, start, size) if is_ours else CHUNK_HEADER.pack(start, size)
            yield segments.view(start, size)
            start += size

    def _heartbeat(self, peer: int, slave: Slave, now: Steady) -> None:
        """Send a slave a chunk without bytes; one of ours that was sent everything, a stamp."""
        slave.sent_at = now
        if slave.hello is None:
            self._effects.append(Write(peer, [CHUNK_HEADER.pack(slave.next, 0)]))
        elif self._has_everything(slave):
            slave.stamped_at = now
            self._effects.append(Write(peer, [FRAME.pack(STAMP, now, 0)]))
        else:
            self._effects.append(Write(peer, [FRAME.pack(LOG, slave.next, 0)]))

    def _has_everything(self, slave: Slave) -> bool:
        """Return whether a slave of ours was sent all that there is."""
        return slave.hello is not None and slave.next == self._store.end_offset and slave.states_sent == self.states.count

    def effects(self) -> list[CoreEffect]:
        """Take out what is to be sent and closed."""
        taken, self._effects = self._effects, []
        return [*self._admission.effects(), *taken]

    # ------------------------------------------------------------ time

    def due(self, now: Instant) -> Steady | None:
        """When a heartbeat is due, or a silent slave is to be closed."""
        s = self._settings
        silent = [slave.heard_at + s.slave_silence_ms for slave in self.slaves.values()]
        heartbeats = [self._beat_at(slave) for slave in self.slaves.values() if slave.next is not None]
        pair = None if self.pair is None else self.pair.due(now.steady)
        looks = [self._look_at] if self._has_ours else []
        looks += [slave.waits_until for slave in self.slaves.values() if self._waits(slave, now.steady)]
        signatures = self._admission.due()
        others = [at for at in (pair, signatures) if at is not None]
        return min([*silent, *heartbeats, *looks, *others], default=None)

    def tick(self, now: Instant) -> None:
        """Send heartbeats, and close slaves that say nothing."""
        self._warnings.tick(now.steady)
        self._admission.tick(now.steady)
        if now.steady >= self._look_at and self._has_ours:
            self._look_at = now.steady + LOOK_MS
            self.states.look()
        for peer, slave in list(self.slaves.items()):
            if now.steady - slave.heard_at >= self._settings.slave_silence_ms:
                self._refuse(peer, slave, f"it said nothing for {self._settings.slave_silence_ms} ms")
            elif slave.next is not None and now.steady >= self._beat_at(slave):
                self._heartbeat(peer, slave, now.steady)
        if self.commit(now):
            self.wake()

    def _beat_at(self, slave: Slave) -> Steady:
        """Return when a heartbeat is due: in a pair, a stamp."""
        if self.pair is not None and self._has_everything(slave):
            return slave.stamped_at + self.pair.stamp_ms
        return slave.sent_at + self._settings.slave_heartbeat_ms

    def stop(self, now: Instant) -> list[Op[None]]:
        """Begin a clean stop: slaves that copy are given a moment to copy the end."""
        return [self._await_last_copies()]

    def _await_last_copies(self) -> Op[None]:
        began = yield from steady()
        while any(map(self._lacks, self.slaves.values())):
            if (yield from steady()) - began >= LAST_COPIES_MS:
                for slave in self.slaves.values():
                    behind = self._store.end_offset - slave.copied
                    log.warning("slave not up to date at the stop: peer=%s behind_bytes=%d", slave.remote, behind)
                return
            yield from sleep(_LAST_COPIES_STEP_MS)

    def _lacks(self, slave: Slave) -> bool:
        """Return whether a slave lacks something that it can get."""
        if slave.next is None:
            return False
        return slave.copied < self._store.end_offset or (slave.hello is not None and slave.states < self.states.count)


def _nothing() -> None:
    """Do nothing: no program has set this yet."""
