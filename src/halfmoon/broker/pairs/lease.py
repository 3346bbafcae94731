"""`Lease`: decides for one member of a pair when it may be the master, and for how long. Never waits, reads no clock.

The record (`halfmoon.broker.pairs.record`) changes only by compare-and-set. Two rules keep every acknowledged message:

- Only a member in ``in_sync`` takes the lease, with a higher epoch, and is then alone in it.
- A master acknowledges only what every other member has that the record may name. A write whose outcome is unknown counts as done
  when it adds a member, and as not done when it removes one.

And one rule says how long a master serves: until ``lease_ms`` after it *sent* its last renewal, less a margin. Another takes over
when it has seen the same record for ``lease_ms``, or at once if the master released it. Each measures with its own steady clock.
While a follower copies, its echoes renew as well: with each it promises not to take the lease for ``lease_ms``. So a complete pair
goes on while the system of the lease is down, and nobody else becomes the master meanwhile.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import NamedTuple

from msgspec.structs import replace

from halfmoon.broker.pairs.record import LeaseRecord, LeaseRefused, decode_record, encode_record
from halfmoon.instant import LONG_AGO, Steady
from halfmoon.logs import RateLimitedLog

log = logging.getLogger("halfmoon.broker")

RENEWALS = 3
"""Renewals within the duration of a lease."""
POLL_MS = 500
"""Interval at which a follower reads the record."""
RETRY_MS = 500
"""Pause after a failed read or write."""
NAMESAKE_CHANGES = 2
"""Changes of its own record that tell a member that is no master of another with its id. One may be a late write of its own."""


class Role(Enum):
    """Role of a member."""

    NONE = "none"
    """It does not know yet who is the master."""
    FOLLOWER = "follower"
    MASTER = "master"
    ENDED = "ended"
    """It was the master and is no more: it must end what it serves, and begins again as a member that knows nothing."""


SILENT = "the master is silent, and this copy may lack acknowledged messages: start the master"
RESTORED = (
    "this directory is a restored backup, and the record is that of the master of epoch {}, which is silent: start that master; or,"
    " if both members are lost, stop this one, remove the record, and start this one again: it goes on with what the backup has"
)


class Step(NamedTuple):
    """One call of the lease's store: a read, or a write of ``text`` where the version is ``expected``."""

    text: bytes | None = None
    expected: str | None = None


class Outcome(NamedTuple):
    """Result of a read: the record and its version, or None twice; of a write: its new version, or None if the record has changed.

    ``error``: it is not known (a write may have happened).
    """

    text: bytes | None = None
    version: str | None = None
    error: str | None = None


class Lease:
    """Knowledge of one member about the lease. ``member`` is its id, ``broker`` ``cluster/name``, ``address`` where it is reached.

    ``last_epoch`` is the last epoch that its log knows, ``was_master`` whether this member began it. ``is_whole``: its log surely
    has everything that it ever reported; not after a power loss with asynchronous flush, until it has followed again.
    ``is_restored``: it starts on a backup. Without a record it goes on with that, as the last master would; with one it follows.
    """

    def __init__(
        self, member: str, broker: str, address: str, lease_ms: int, now: Steady, *,
        last_epoch: int = 0, was_master: bool = False, is_whole: bool = True, is_restored: bool = False,
    ) -> None:  # fmt: skip
        self.member, self._broker, self._address, self._lease_ms = member, broker, address, lease_ms
        self._last_epoch, self._was_master, self.is_whole = last_epoch, was_master or is_restored, is_whole
        self._is_restored = is_restored
        self.role = Role.NONE
        self.record: LeaseRecord | None = None
        """The record as it was last read, or written for sure."""
        self._version: str | None = None
        self._seen_at = now
        """Since when the record is known to be unchanged."""
        self._sent: _Sent | None = None
        self._tried: dict[LeaseRecord, _Sent] = {}
        """Writes of unknown outcome, the first of each record: they may still happen while the version is what they expect."""
        self._renewed_at = self._echoed_at = self._promised_until = LONG_AGO
        self._next_at, self._must_read, self._busy = now, True, False
        self._wanted: tuple[str, ...] | None = None
        self._source: tuple[object, ...] = ()
        self._others: frozenset[str] = frozenset()
        """Members that the record may name, by this source: each turn asks, and it seldom changes."""
        self._release_to: str | None = None
        self.is_handed_over = False
        """The release is written: the other member takes the lease at once."""
        self._proof_from = self._failed_at = LONG_AGO
        """When a proof was asked for, and when a call of the store last failed."""
        self._is_reclaimed = False
        """It serves no more until a proof that was asked for is there: its release may have been written."""
        self._changes = 0
        """Changes of the record of this member although it is no master."""
        self.problem: str | None = "the record was not read yet"
        """Fault of the lease; None: there is none."""
        self._logged: str | None = None
        """The last problem that was logged, until something was written."""
        self._warnings = RateLimitedLog(log, now)

    # ------------------------------------------------------------ facts

    @property
    def epoch(self) -> int:
        """Return the last epoch that is known here: that of this master, as long as it is the master."""
        return self._last_epoch

    @property
    def others(self) -> frozenset[str]:
        """Return the members besides this one that the record may name as in sync: what is acknowledged, they must have."""
        source = (self.record, self._sent, self._tried, len(self._tried), self._wanted)
        if source != self._source:
            self._source = source
            records = (self.record, None if self._sent is None else self._sent.record, *self._tried)
            named = (name for record in records if record is not None for name in record.in_sync)
            self._others = frozenset((*named, *(self._wanted or ()))) - {self.member}
        return self._others

    @property
    def is_settled(self) -> bool:
        """Return whether the record names exactly those whom it may name: no write is under way, unknown, or wanted."""
        return self._wanted is None and self.record is not None and self.others <= set(self.record.in_sync)

    @property
    def margin_ms(self) -> int:
        """Return how long before the end of the lease a master stops: for clocks that differ, and for replies under way."""
        return max(self._lease_ms // 10, 100)

    @property
    def valid_until(self) -> Steady:
        """Return until when a master may serve: from its last renewal, or the last echo of the only other that may take over."""
        since = max(self._renewed_at, self._echoed_at) if self.others else self._renewed_at
        return since + (self._lease_ms - self.margin_ms)

    @property
    def has_namesake(self) -> bool:
        """Return whether another member renews the lease with this one's id: one directory is a copy of the other."""
        return self._changes >= NAMESAKE_CHANGES

    @property
    def may_start_over(self) -> bool:
        """Return whether nothing of this member may be needed: another has the lease, and this one may not take it."""
        record = self.record
        return self.role is Role.FOLLOWER and record is not None and self.member not in record.in_sync

    @property
    def is_spare(self) -> bool:
        """Return whether this follower is one too many: the record names the master and another one."""
        record = self.record
        return self.role is Role.FOLLOWER and record is not None and len(record.in_sync) > 1 and self.member not in record.in_sync

    def may_serve(self, now: Steady) -> bool:
        """Return whether this member is the master at a time."""
        return self.role is Role.MASTER and now < self.valid_until and not self._is_reclaimed

    # ------------------------------------------------------------ what others say

    def echoed(self, member: str, sent_at: Steady) -> None:
        """Note that a follower promised, after ``sent_at``, not to take the lease for the duration of it."""
        if self.others <= {member}:
            self._echoed_at = max(self._echoed_at, sent_at)

    def promise(self, now: Steady) -> None:
        """Promise, as a follower that has everything, not to take the lease for the duration of it."""
        lease_ms = self._lease_ms if self.record is None else max(self._lease_ms, self.record.lease_ms)
        self._promised_until, self.is_whole = now + lease_ms, True

    def want(self, in_sync: tuple[str, ...], now: Steady) -> None:
        """Have the record name these members as in sync, the master among them."""
        if self.record is not None and in_sync != (self._wanted or self.record.in_sync):
            self._wanted, self._next_at = in_sync, now

    def look(self, now: Steady) -> None:
        """Read the record at once: something has happened."""
        self._next_at = min(self._next_at, now)

    def prove(self, now: Steady) -> None:
        """Have the record renewed at once: `proof` says whether the lease's system takes writes."""
        self._proof_from, self._next_at = now, now

    @property
    def proof(self) -> bool | None:
        """Return whether a renewal that was sent since `prove` is written; None: it is not known yet."""
        if self._renewed_at >= self._proof_from:
            return True
        return False if self.has_failed or self.role is not Role.MASTER else None

    @property
    def has_failed(self) -> bool:
        """Return whether a call of the store failed since `prove` or `release`."""
        return self._failed_at >= self._proof_from

    def release(self, to: str, now: Steady, why: str) -> None:
        """Let a member take the lease at once: another that is in sync, or this one when it starts again. It serves no more."""
        if self.role is Role.MASTER:
            after = "the other member takes over" if to != self.member else "no other member can take over"
            self._end(f"{why}, and {after}", logging.WARNING)
            self._release_to, self._proof_from, self._next_at = to, now, now

    def reclaim(self, now: Steady) -> None:
        """Be the master again, after a release that failed, as soon as a renewal is written: then it is written nevermore."""
        if self.role is Role.ENDED and not self.is_handed_over:
            self.role, self._release_to, self._is_reclaimed, self._must_read = Role.MASTER, None, True, True
            self.prove(now)
            self.check(now)

    def end(self, why: str) -> None:
        """End the role of a master that cannot go on."""
        if self.role is Role.MASTER:
            self._end(why)

    @property
    def is_busy(self) -> bool:
        """Return whether a call of the store is under way."""
        return self._busy

    @property
    def is_released(self) -> bool:
        """Return whether nothing is left to write."""
        return self._release_to is None

    # ------------------------------------------------------------ steps

    def due(self, now: Steady) -> Steady | None:
        """Return when `step` has something to do; None: a call is under way, or all is over."""
        if self._busy:
            return self.valid_until if self.role is Role.MASTER else None
        if self.role is Role.ENDED:
            return None if self.is_released else self._next_at
        return min(self._next_at, self.valid_until) if self.role is Role.MASTER else self._next_at

    def check(self, now: Steady) -> None:
        """End the role of a master whose time has run out."""
        if self.role is Role.MASTER and now >= self.valid_until:
            unknown = "its system did not answer" if self._busy else "this process did not run"
            self._end(f"the lease could not be renewed in time: {self.problem or unknown}")

    def step(self, now: Steady) -> Step | None:
        """Return the next call of the store; None: nothing is due. `done` must follow each."""
        self.check(now)
        if self._busy or now < self._next_at or (self.role is Role.ENDED and self.is_released):
            return None
        record = None if self._must_read else self._next_record(now)
        self._busy = True
        self._sent = _Sent(record, self._version, now) if record is not None else None
        return Step() if record is None else Step(encode_record(record), self._version)

    def _next_record(self, now: Steady) -> LeaseRecord | None:
        """Return the record that is to be written now; None: none."""
        record, me = self.record, self.member
        if record is None:
            return self._first() if self.role is Role.NONE else None
        if self.role is Role.MASTER:
            return replace(record, renewal=record.renewal + 1, in_sync=self._wanted or record.in_sync)
        if self.role is Role.ENDED:
            to, self._release_to = self._release_to, None
            if to is None or record.holder != me or to not in record.in_sync:
                return None
            return replace(record, renewal=record.renewal + 1, holder=to, address="")
        if not self._may_take(record, now):
            return None
        return replace(
            record, epoch=max(record.epoch, self._last_epoch) + 1, holder=me, address=self._address, in_sync=(me,),
            renewal=record.renewal + 1, lease_ms=self._lease_ms,
        )  # fmt: skip

    def _first(self) -> LeaseRecord | None:
        """Return the first record. A follower does not make it: it cannot know whether it has everything."""
        if self._last_epoch and not self._was_master:
            self._said("there is no record, and this is a copy: start the last master first")
            return None
        return LeaseRecord(
            broker=self._broker, epoch=self._last_epoch + 1, holder=self.member, address=self._address, in_sync=(self.member,),
            lease_ms=self._lease_ms,
        )  # fmt: skip

    def _may_take(self, record: LeaseRecord, now: Steady) -> bool:
        """Return whether a member that is no master may become it."""
        if self.has_namesake:
            return False
        if self.member not in record.in_sync:
            if now >= self._seen_at + record.lease_ms:
                self._said(RESTORED.format(record.epoch) if self._is_restored else SILENT)
            return False
        if not self.is_whole and record.in_sync != (self.member,):
            self._said("this log may lack its end after a power loss: the other member is to take over first")
            return False
        if record.holder == self.member and not record.address:
            return True
        return now >= max(self._seen_at + max(record.lease_ms, self._lease_ms), self._promised_until)

    # ------------------------------------------------------------ outcomes

    def done(self, outcome: Outcome, now: Steady) -> None:
        """Take the result of the last `step`."""
        self._warnings.tick(now)
        sent, self._sent, self._busy = self._sent, None, False
        if outcome.error is not None:
            if sent is not None:  # the same record was maybe sent before, and it counts from then on
                self._tried.setdefault(sent.record, sent)
                self._release_again(sent)
            self._failed_at = now
            self._must_read, self._next_at = True, now + RETRY_MS
            self._said(f"it cannot be {'read' if sent is None else 'written'}: {outcome.error}")
        elif sent is None:
            self._read(outcome, now)
        elif outcome.version is None:
            self._must_read, self._next_at = True, now
            self._release_again(sent)
        else:
            self._written(sent, outcome.version, now)
        self.check(now)

    def _release_again(self, sent: _Sent) -> None:
        """Have a release that is not known to be written tried again, once the record was read."""
        if self.role is Role.ENDED and not sent.record.address:
            self._release_to = sent.record.holder

    def _read(self, outcome: Outcome, now: Steady) -> None:
        self._next_at = now + POLL_MS
        try:
            record = decode_record(outcome.text, self._broker) if outcome.text is not None else None
        except LeaseRefused as exc:
            self._said(str(exc))
            return
        self.problem = None
        if outcome.version != self._version or self.record is None:
            self._seen_at = now
            self._changes += self.role is Role.NONE and all(each and each.holder == self.member for each in (self.record, record))
        self.record, self._version = record, outcome.version
        if (happened := self._happened(record, outcome.version)) is not None:
            self._written(happened, str(outcome.version), now)
        elif self.role is Role.MASTER:
            self._must_read, self._next_at = False, now
            if record is None or record.holder != self.member or record.epoch != self._last_epoch:
                self._end("another member has the lease" if record is not None else "the record is gone")
        elif self.role is Role.ENDED:
            self._find_released(record, now)
        else:
            self._follow(record, now)

    def _find_released(self, record: LeaseRecord | None, now: Steady) -> None:
        """Go on to release the lease, if it is there and this member's still."""
        self._must_read, self._next_at = False, now
        if record is None or record.holder != self.member:
            self._release_to = None

    def _happened(self, record: LeaseRecord | None, version: str | None) -> _Sent | None:
        """Return the write of unknown outcome that made this version. Another version than they expect: no other ever happens."""
        tried = self._tried
        if all(version == each.expected for each in tried.values()):
            return None
        self._tried = {}
        return None if record is None or version is None else tried.get(record)

    def _follow(self, record: LeaseRecord | None, now: Steady) -> None:
        """Take the record of another master, or of none; write at once if that is possible."""
        self.role = Role.NONE if record is None or record.holder == self.member else Role.FOLLOWER
        if record is not None:
            self._last_epoch = max(self._last_epoch, record.epoch)
            self._was_master &= record.holder == self.member
        self._must_read = self._next_record(now) is None
        if not self._must_read:
            self._next_at = now

    def _written(self, sent: _Sent, version: str, now: Steady) -> None:
        record = sent.record
        self.record, self._version, self._tried, self._seen_at = record, version, {}, now
        self.problem = self._logged = None
        self._must_read = False
        is_released = record.holder != self.member or not record.address
        if self.role is Role.MASTER and is_released:
            self.end("the lease was handed over, although the answer was lost")
        if self.role is Role.ENDED:
            self.is_handed_over |= is_released
            self._release_to, self._next_at = None if is_released else self._release_to, now
            return
        if is_released:
            return
        self._renewed_at, self._next_at = sent.at, sent.at + self._lease_ms // RENEWALS
        if sent.at < self._proof_from:
            self._next_at = now
        else:
            self._is_reclaimed = False
        if self._wanted == record.in_sync:
            self._wanted = None
        elif self._wanted is not None:
            self._next_at = now
        if self.role is not Role.MASTER:
            self.role, self._last_epoch, self._was_master = Role.MASTER, record.epoch, True
            log.warning("this broker is the master now: broker=%s epoch=%d", self._broker, record.epoch)

    def _said(self, problem: str) -> None:
        if problem != self._logged:
            self._warnings.warning("lease of %s: %s", self._broker, problem)
        self.problem = self._logged = problem

    def _end(self, why: str, level: int = logging.ERROR) -> None:
        self.role, self._release_to = Role.ENDED, None
        log.log(level, "this broker is no longer the master: broker=%s epoch=%d reason=%s", self._broker, self._last_epoch, why)


class _Sent(NamedTuple):
    """A write: the record, the version that it expects, and when it was sent."""

    record: LeaseRecord
    expected: str | None
    at: Steady
