"""The two lanes of syncs: one sync each at a time, what came meanwhile waits for the next, and a failed one is never repeated."""

from __future__ import annotations

from errno import EIO, EMFILE
from random import Random

from halfmoon.store import Store
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, draft, open_store, run


def sync_store() -> Store:
    store = open_store(SimDisk(Random(1)), flush_disk_type="SYNC_FLUSH")
    for work in store.work():
        run(work)
    return store


def test_what_is_appended_during_a_sync_waits_for_the_next_one():
    store = sync_store()
    first = store.append("t", 0, [draft()], NOW)
    store.flush(1, NOW)
    [work] = [work for work in store.work() if work.name == "sync log"]
    second = store.append("t", 0, [draft()], NOW)
    store.flush(1, NOW)
    assert [work for work in store.work() if work.name == "sync log"] == [], "one sync of the log at a time"

    run(work)
    assert first.end_offset <= store.durable_offset < second.end_offset
    [work] = [work for work in store.work() if work.name == "sync log"]
    run(work)
    assert store.durable_offset == second.end_offset


def test_a_sync_that_never_began_is_owed_and_one_that_failed_ends_the_store():
    store = sync_store()
    appended = store.append("t", 0, [draft()], NOW)
    store.sync_now()
    [work] = [work for work in store.work() if work.name == "sync log"]
    work.done(OSError(EMFILE, "no descriptor"), NOW)
    assert (store.durable_offset < appended.end_offset, store.failure) == (True, None)
    store.sync_now()
    [work] = [work for work in store.work() if work.name == "sync log"]
    run(work)
    assert store.durable_offset == appended.end_offset

    store.append("t", 0, [draft()], NOW)
    store.sync_now()
    [work] = [work for work in store.work() if work.name == "sync log"]
    work.done(OSError(EIO, "broken"), NOW)
    assert store.failure is not None
    store.sync_now()
    assert [work for work in store.work() if work.name == "sync log"] == []
