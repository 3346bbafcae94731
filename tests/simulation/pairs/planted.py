"""Faults planted into the members of a pair, each by a patch. Each breaks one promise, as a real mistake would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halfmoon.broker.copies.following import Following
from halfmoon.broker.copies.standby import Standby
from halfmoon.broker.pairs.lease import Lease, Outcome, Role
from halfmoon.broker.pairs.pair import Pair
from halfmoon.broker.pairs.record import LeaseRecord
from halfmoon.effects import Op
from halfmoon.instant import Steady
from halfmoon.store.epochs import EpochRow, Epochs
from halfmoon.store.log.kept import Kept
from halfmoon.wire.copying import Report

Plant = Callable[[pytest.MonkeyPatch], None]


def serves_without_end(patch: pytest.MonkeyPatch) -> None:
    """A master serves until it reads that another is one."""
    patch.setattr(Lease, "may_serve", lambda self, now: self.role is Role.MASTER)
    patch.setattr(Lease, "check", lambda self, now: None)


def promotes_anybody(patch: pytest.MonkeyPatch) -> None:
    """A follower that is not in sync takes the lease."""

    def may_take(self: Lease, record: LeaseRecord, now: Steady) -> bool:
        return now >= max(self._seen_at + record.lease_ms, self._promised_until)

    patch.setattr(Lease, "_may_take", may_take)


def releases_before_the_record(patch: pytest.MonkeyPatch) -> None:
    """Replies wait no more for a follower that the record is about to lose."""

    def others(self: Lease) -> frozenset[str]:
        named = self._wanted or (self.record.in_sync if self.record is not None else ())
        return frozenset(named) - {self.member}

    patch.setattr(Lease, "others", property(others))


def forgets_epochs(patch: pytest.MonkeyPatch) -> None:
    """Epochs are not on the disk."""

    def save(self: Epochs, rows: tuple[EpochRow, ...]) -> None:
        if not rows:
            written(self, rows)
        self.rows = rows

    written = Epochs._save
    patch.setattr(Epochs, "_save", save)


def shows_before_the_copy(patch: pytest.MonkeyPatch) -> None:
    """Consumers see what the follower may lack."""

    def show(self: Kept) -> None:
        if self.holds_back and not self._health.failure:
            kept = self._flush.durable_offset if self._sync_flush else self._log.end
            if kept > self._visible.end:
                self._visible.publish_kept(kept, self._log.last_store_ms)

    patch.setattr(Kept, "show", show)


def forgets_tried_writes(patch: pytest.MonkeyPatch) -> None:
    """A write without an answer counts as not done."""

    def done(self: Lease, outcome: Outcome, now: Steady) -> None:
        real(self, outcome, now)
        self._tried = {}

    real = Lease.done
    patch.setattr(Lease, "done", done)


def forgets_its_promise(patch: pytest.MonkeyPatch) -> None:
    """A follower takes the lease although it has just promised not to."""
    patch.setattr(Lease, "promise", lambda self, now: None)


def reports_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """A follower with sync flush reports what is not on its device."""
    patch.setattr(Following, "_state", lambda self: Report(self._store.end_offset, self._states_saved, self._promised))


def keeps_a_log_that_diverged(patch: pytest.MonkeyPatch) -> None:
    """A master that comes back follows without a look at its log."""

    def compare(self: Standby, master: Any) -> Op[None]:
        return
        yield

    patch.setattr(Standby, "compare", compare)


def joins_at_once(patch: pytest.MonkeyPatch) -> None:
    """A follower is named before it has what was answered."""

    def join(self: Pair, others: frozenset[str], now: Steady) -> None:
        if not others and self._slaves:
            self.lease.want((self.lease.member, next(iter(self._slaves))), now)

    patch.setattr(Pair, "_join", join)


def takes_over_too_soon(patch: pytest.MonkeyPatch) -> None:
    """A follower takes the lease from a master that is only silent for a moment."""

    def may_take(self: Lease, record: LeaseRecord, now: Steady) -> bool:
        return self.member in record.in_sync and now >= self._seen_at + record.lease_ms // 2

    patch.setattr(Lease, "_may_take", may_take)


PLANTS: dict[Plant, tuple[tuple[str, ...], int, int]] = {
    serves_without_end: (("lease_cut", "pause", "apart"), 5, 0),
    promotes_anybody: (("apart", "kill", "lease_cut"), 5, 0),
    releases_before_the_record: (("apart", "kill", "lease_odd", "pause"), 5, 1),
    forgets_epochs: (("apart", "kill", "torn"), 5, 6),
    shows_before_the_copy: (("one_way", "apart", "kill"), 5, 4),
    forgets_tried_writes: (("late_join", "kill"), 5, 1),
    forgets_its_promise: (("lease_cut", "pause", "lease_cut"), 5, 17),
    reports_before_the_sync: (("power", "power", "kill"), 5, 1),
    keeps_a_log_that_diverged: (("apart", "kill", "one_way"), 5, 14),
    joins_at_once: (("kill", "apart"), 5, 2),
    takes_over_too_soon: (("lease_odd", "pause", "apart"), 5, 1),
}
"""Each fault with the kinds and the count of faults in a history that finds it, and the first seed that does."""
