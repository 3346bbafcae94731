"""`Pair`: what a master of a pair waits for: the copy of every other member that the record of the lease may name.

A follower *joins* in this order: it has nearly everything; from then on replies wait for it; it has all that was answered before;
the record names it. One that is lost or silent leaves in the opposite order: replies go on waiting until the record does not name
it any more. So whoever may take the lease has everything that was acknowledged, wherever this process dies.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from halfmoon.broker.copies.feeding import SLAVES_MAX, Feeding, Slave
from halfmoon.broker.pairs.lease import Lease
from halfmoon.broker.pairs.record import LeaseRecord
from halfmoon.instant import Instant, Steady
from halfmoon.store.log.kept import EVERYTHING
from halfmoon.store.store import Store
from halfmoon.wire.copying import Hello

log = logging.getLogger("halfmoon.broker")

ALONE = "copies_min=2, and the pair is not complete: nothing new is stored until the other broker follows"
"""Refusal of a master that may not go on alone."""
LOOK_MS = 100
"""Shortest time between two looks at who is lost."""
LOST_MS = 500
"""Time for a follower whose connection is lost to come back, before the pair goes on without it."""
NEAR_BYTES = 1024 * 1024
"""A follower that lacks no more than this may join: replies wait for it from then on."""
KNOWN_MAX = 2 * SLAVES_MAX
"""Members whose progress is remembered."""
STAMPS = 6
"""Stamps within the duration of a lease: each follower returns them, and so renews it."""


NOBODY_TWICE = frozenset[str]()


class _Progress(NamedTuple):
    """Last progress of a follower, and when that was, or when it last had everything."""

    copied: int
    states: int
    at: Steady


class Pair:
    """The pair of a master. ``follower_ms``: how long a follower may report nothing new before the pair goes on without it.

    ``copies_min`` 2: while the pair is not complete the store takes nothing, and what no other member has is not kept.
    """

    def __init__(
        self, lease: Lease, feeding: Feeding, store: Store, follower_ms: int, lease_ms: int, copies_min: int = 1
    ) -> None:  # fmt: skip
        self.lease, self._feeding, self._store, self._follower_ms = lease, feeding, store, follower_ms
        self.stamp_ms = max(lease_ms // STAMPS, 50)
        self._looked_at: Steady | None = None
        self._joining: str | None = None
        self._join_offset = self._join_states = 0
        self._progress: dict[str, _Progress] = {}
        self._slaves: dict[str, Slave] = {}
        self._expected: set[str] = set()
        """Followers of a master that begins again after a switch that failed, until they are back."""
        self._twins = NOBODY_TWICE
        self._told: frozenset[str] | None = None
        self._told_of: LeaseRecord | None = None
        self.copied_states = EVERYTHING
        self._needs_copies = copies_min > 1
        self._kept_alone = store.end_offset if self._needs_copies else EVERYTHING
        """Up to where the log counts as copied while nobody is waited for."""
        self._refuse()

    @property
    def epoch(self) -> int:
        """Return the epoch of this master."""
        return self.lease.epoch

    @property
    def count(self) -> int:
        """Return the number of the last change beside the log."""
        return self._feeding.states.count

    @property
    def waited_for(self) -> frozenset[str]:
        """Return the members whose copies are waited for."""
        return self.lease.others if self._joining is None else self.lease.others | {self._joining}

    @property
    def is_complete(self) -> bool:
        """Return whether another member has everything that was acknowledged."""
        record = self.lease.record
        return record is not None and len(record.in_sync) > 1

    @property
    def follower(self) -> str | None:
        """Return the member that could take over now: the record names it, and it is connected; None: there is none."""
        named = () if self.lease.record is None else self.lease.record.in_sync
        return next((member for member in named if member != self.lease.member and member in self._slaves), None)

    def refusal(self, hello: Hello) -> str | None:
        """Return why a slave of ours may not copy; None: it may."""
        if hello.member.hex() == self.lease.member:
            return "its directory is a copy of this broker's, and has its id: empty it"
        return None if hello.epoch == self.epoch else f"it expects epoch {hello.epoch}, and this is epoch {self.epoch}"

    def turn(self, now: Instant) -> None:
        """Take what slaves have reported: who joins, who leaves, and how far the copies are."""
        self._slaves = self._connected(now.steady)
        self._excuse(now.steady)
        for member, slave in self._slaves.items():
            self._note(member, slave, now.steady)
        if len(self._progress) > KNOWN_MAX:
            self._progress = {
                each: known for each, known in self._progress.items() if each in self._slaves or each in self.waited_for
            }
        others = self.lease.others
        self._leave(others, now.steady)
        self._join(others, now.steady)
        self._tell()
        waited_for, before = self.waited_for, self.copied_states
        slaves = [self._slaves.get(member) for member in waited_for]
        self.copied_states = min([0 if slave is None else slave.states for slave in slaves], default=EVERYTHING)
        copied = min([self._copied(member) for member in waited_for], default=self._kept_alone)
        if self._needs_copies:
            self._kept_alone = max(self._kept_alone, copied)
        self._refuse()
        if self._store.kept.copied_to(copied) or self.copied_states != before:
            self._feeding.on_copied()

    def _excuse(self, now: Steady) -> None:
        """Count no time as a follower's silence in which this process did not look: its reports may be here, and not read yet."""
        if self._looked_at is None:
            self._expected = set(self.lease.others)
            self._progress = {member: _Progress(0, 0, now) for member in self._expected}
        gap_ms = 0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        if gap_ms > self._follower_ms // 2:
            for member in self._progress.keys() & self._slaves.keys():
                self._progress[member] = self._progress[member]._replace(at=self._progress[member].at + gap_ms)

    def _lacks(self, known: _Progress) -> bool:
        return known.copied < self._store.end_offset or known.states < self.count

    def _connected(self, now: Steady) -> dict[str, Slave]:
        """Return the slave of each connected member. Two of one id are none: nobody knows which of them would take over."""
        found: dict[str, Slave] = {}
        twins = NOBODY_TWICE
        for slave in self._feeding.slaves.values():
            if (member := slave.member) is None or slave.next is None:
                continue
            if (other := found.get(member)) is not None and now - other.heard_at < self._follower_ms:
                twins |= {member}
            found[member] = slave
        if twins - self._twins:
            log.error("two slaves have one id, so none is in the pair: the directory of one is a copy of the other's: empty it")
        self._twins = twins
        return {member: slave for member, slave in found.items() if member not in twins} if twins else found

    def _refuse(self) -> None:
        self._store.copies_refusal = ALONE if self._needs_copies and not self.is_complete else None

    def due(self, now: Steady) -> Steady | None:
        """Return when a follower has been silent for too long, or may be soon; None: none is waited for."""
        waited_for = [known for member in self.waited_for if (known := self._progress.get(member)) is not None]
        if not waited_for:
            return None
        due = max(min(known.at for known in waited_for) + self._follower_ms, now + LOOK_MS)
        look = (now if self._looked_at is None else self._looked_at) + self._follower_ms // 4
        return min(due, look) if any(map(self._lacks, waited_for)) else due

    def _copied(self, member: str) -> int:
        known = self._progress.get(member)
        return 0 if known is None else known.copied

    def _note(self, member: str, slave: Slave, now: Steady) -> None:
        known = self._progress.get(member)
        self._expected.discard(member)
        has_everything = slave.copied >= self._store.end_offset and slave.states >= self.count
        if known is None or (slave.copied, slave.states) != known[:2] or has_everything:
            self._progress[member] = _Progress(slave.copied, slave.states, now)
        if slave.stamp:
            self.lease.echoed(member, Steady(slave.stamp))

    def _is_lost(self, member: str, now: Steady) -> bool:
        """Return whether a follower lacks something and reported nothing new for too long."""
        known = self._progress.get(member)
        has_time = member in self._slaves or member in self._expected
        return known is None or now - known.at >= (self._follower_ms if has_time else min(LOST_MS, self._follower_ms))

    # ------------------------------------------------------------ joining and leaving

    def _leave(self, others: frozenset[str], now: Steady) -> None:
        """Have the record no longer name followers that are lost; until it does not, their copies are waited for."""
        record = self.lease.record
        if record is None or not others:
            return
        lost = {member for member in others if self._is_lost(member, now)}
        if not lost and self.lease.is_settled:
            return
        named = dict.fromkeys((*record.in_sync, *sorted(others)))  # one that is about to be named stays so
        self.lease.want(tuple(member for member in named if member not in lost)[:2], now)

    def _join(self, others: frozenset[str], now: Steady) -> None:
        """Take in a follower that has nearly everything, and goes on."""
        if others and self._joining is None:
            return
        candidates = {member: slave for member, slave in self._slaves.items() if not self._is_lost(member, now)}
        if self._joining in others or self._joining not in candidates:
            self._joining = None
        if others:
            return
        if self._joining is None:
            for member, slave in candidates.items():
                if self._store.end_offset - slave.copied <= NEAR_BYTES and not slave.is_slow:
                    self._joining, self._join_offset, self._join_states = member, self._store.end_offset, self.count
                    break
        if self._joining is not None:
            slave = self._slaves[self._joining]
            if slave.copied >= self._join_offset and slave.states >= self._join_states:
                self.lease.want((self.lease.member, self._joining), now)

    def _tell(self) -> None:
        """Log once who joined and who left."""
        record = self.lease.record
        if record is self._told_of:
            return
        self._told_of = record
        named = frozenset(record.in_sync) - {self.lease.member} if record is not None else frozenset()
        if named == self._told:
            return
        if named:
            log.warning("the pair is complete: epoch=%d follower=%s", self.epoch, ", ".join(named))
        elif self._told:
            after = "nothing new is stored until it is (copies_min=2)" if self._needs_copies else "goes on with one copy"
            log.error("the pair is not complete, and %s: epoch=%d lost=%s", after, self.epoch, ", ".join(self._told))
        self._told = named
