"""The log is kept up to where it is durable, in sync flush, and copied, in a pair; nothing else is shown."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from halfmoon.instant import Instant, instant
from halfmoon.store.log.kept import EVERYTHING, LINGER_MS
from halfmoon.store.settings import ASYNC_FLUSH, SYNC_FLUSH, StoreSettings
from halfmoon.store.store import Store
from halfmoon.testing.disk import SimDisk
from tests.broker.talk import SMALL
from tests.store.driving import draft


class Kept:
    """A store, and its time."""

    def __init__(self, *, sync: bool, copied: int | None) -> None:
        self.ms, self.disk = 0, SimDisk(Random(1), write_back=0)
        settings = StoreSettings(**{**SMALL, "flush_disk_type": SYNC_FLUSH if sync else ASYNC_FLUSH})
        self.store = Store.open(self.disk, settings, bytes(8), self.now, copied_offset=copied)
        self.append()
        self.store.flush(1, self.now.steady)
        self.sync()

    @property
    def now(self) -> Instant:
        return instant(1_700_000_000_000 + self.ms, self.ms)

    def append(self) -> int:
        """Append a message; return where the log ends."""
        self.store.append("T", 0, [draft()], self.now.date)
        return self.store.end_offset

    def works(self) -> list[Any]:
        return [work for work in self.store.work() if work.name == "sync log"]

    def sync(self) -> None:
        """Run the syncs that the store leaves."""
        for work in self.works():
            work.done(work.run(), self.now)

    @property
    def shown(self) -> int:
        """How many messages are visible."""
        return self.store.queues["T", 0].max_offset


@pytest.mark.parametrize("sync", [False, True])
def test_without_a_promise_all_is_shown_and_with_one_what_is_kept(sync: bool) -> None:
    kept = Kept(sync=sync, copied=None)
    shown = kept.shown
    kept.append()
    assert kept.store.holds_back is sync
    assert kept.shown == (shown if sync else shown + 1)
    kept.store.flush(1, kept.now.steady)
    kept.sync()
    assert (kept.shown, kept.store.kept_offset) == (shown + 1, kept.store.end_offset)


@pytest.mark.parametrize("sync", [False, True])
def test_in_a_pair_nothing_is_shown_that_is_not_copied_and_in_sync_flush_durable_too(sync: bool) -> None:
    kept = Kept(sync=sync, copied=EVERYTHING)
    shown, begin = kept.shown, kept.store.end_offset
    kept.store.kept.copied_to(begin)
    end = kept.append()
    kept.store.flush(1, kept.now.steady)
    kept.sync()
    assert (kept.shown, kept.store.kept_offset) == (shown, begin), "it is durable, and not copied"
    assert kept.store.record(begin) is None
    kept.store.kept.copied_to(end)
    assert (kept.shown, kept.store.kept_offset) == (shown + 1, end)
    assert kept.store.record(begin) is not None
    last = kept.append()
    kept.store.kept.copied_to(last)
    assert kept.shown == (shown + 1 if sync else shown + 2), "it is copied, and not durable"


def test_a_copy_that_is_lost_hides_nothing_that_was_shown_and_one_that_is_not_waited_for_shows_all() -> None:
    kept = Kept(sync=False, copied=EVERYTHING)
    kept.store.kept.copied_to(EVERYTHING)
    shown = kept.shown
    kept.store.kept.copied_to(0)
    assert (kept.shown, kept.store.kept_offset) == (shown, 0)
    kept.append()
    assert kept.shown == shown
    kept.store.kept.copied_to(EVERYTHING)
    assert kept.shown == shown + 1


def test_one_sync_covers_what_was_appended_before_it_and_the_next_what_came_meanwhile() -> None:
    kept = Kept(sync=True, copied=None)
    first = kept.append()
    kept.store.flush(1, kept.now.steady)
    [work] = kept.works()
    last = kept.append()
    kept.store.flush(1, kept.now.steady)
    assert kept.works() == [], "one at a time"
    work.done(work.run(), kept.now)
    assert kept.store.durable_offset == first
    kept.sync()
    assert kept.store.durable_offset == last


def test_what_nobody_waits_for_is_synced_a_little_later() -> None:
    kept = Kept(sync=True, copied=None)
    end = kept.append()
    kept.store.flush(0, kept.now.steady)
    assert kept.works() == []
    kept.ms += LINGER_MS
    assert kept.store.due() is not None
    kept.store.tick(kept.now)
    kept.sync()
    assert kept.store.durable_offset == end


def test_nothing_is_shown_any_more_once_a_sync_failed() -> None:
    kept = Kept(sync=True, copied=EVERYTHING)
    shown = kept.shown
    kept.append()
    kept.disk.fail_syncs = 1
    kept.store.flush(1, kept.now.steady)
    for work in kept.works():
        with pytest.raises(OSError, match="input/output") as failed:
            work.run()
        work.done(failed.value, kept.now)
    kept.store.kept.copied_to(EVERYTHING)
    assert kept.shown == shown
    assert kept.store.failure is not None
