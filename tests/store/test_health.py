"""What passes is refused and tried again; what does not ends the store. Both are said."""

from __future__ import annotations

import logging
from errno import EFBIG, EIO, ENOSPC
from random import Random
from unittest.mock import Mock

import pytest

from halfmoon.errors import StoreNotWritable
from halfmoon.instant import instant
from halfmoon.store.health import LASTS_MS, Health
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, carry_out, draft, open_store, read_all

FLUSH = pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])


@FLUSH
def test_a_store_without_descriptors_refuses_with_the_reason_and_goes_on_when_there_are_some(
    flush: str, caplog: pytest.LogCaptureFixture
):
    for left in range(12):  # wherever the last descriptor goes
        disk = SimDisk(Random(left), write_back=0)
        store = open_store(disk, flush_disk_type=flush)
        store.append("old", 0, [draft(b"before")], NOW)
        disk.descriptors = left
        told: list[Exception | None] = []
        for number in range(8):
            store.make_ready(f"new-{number}", 0, lambda error, now, told=told: told.append(error))
            carry_out(store)
        if left < 3:
            assert any("too many open files" in str(error) for error in told)
            with pytest.raises(StoreNotWritable, match="too many open files"):
                any(store.append("old", 0, [draft(bytes(3000))], NOW) is None for _ in range(100))
        store.flush(1, NOW)
        carry_out(store)
        store.tick(instant(NOW + 600))
        carry_out(store)
        assert store.failure is None
        assert store.health.short is not None
        disk.descriptors = None
        store.make_ready("later", 0, lambda error, now, told=told: told.append(error))
        carry_out(store)
        assert told[-1] is None
        end = store.append("later", 0, [draft(b"after")], NOW + 700).end_offset
        store.flush(1, NOW)
        store.tick(instant(NOW + 1300))
        carry_out(store)
        assert store.durable_offset >= end
        assert [body for body, _ in read_all(store, "later", 0).values()] == [b"after"]
        store.tick(instant(NOW + 1300 + LASTS_MS))
        assert store.health.short is None
    assert "too many open files" in caplog.text
    assert "did not occur for 60 s" in caplog.text


@FLUSH
def test_what_no_descriptor_was_left_to_sync_is_synced_later(flush: str):
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk, flush_disk_type=flush)
    store.append("t", 0, [draft(b"kept")], NOW)
    disk.descriptors = 0
    for at in (600, 1200, 1800):
        store.flush(1, NOW)
        store.tick(instant(NOW + at))
        carry_out(store)
    assert store.durable_offset == 0
    disk.descriptors = None
    for at in (2400, 3600):
        store.tick(instant(NOW + at))
        carry_out(store)
    assert store.durable_offset == store.end_offset
    disk.crash(power=True)
    assert [body for body, _ in read_all(open_store(disk, flush_disk_type=flush), "t", 0).values()] == [b"kept"]


def test_a_sync_that_failed_is_in_the_log_with_the_reason_once(caplog: pytest.LogCaptureFixture):
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk, flush_disk_type="SYNC_FLUSH")
    store.append("t", 0, [draft()], NOW)
    disk.fail_syncs = 1
    store.flush(1, NOW)
    carry_out(store)
    for _ in range(3):
        with pytest.raises(StoreNotWritable):
            store.append("t", 0, [draft()], NOW)
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(records) == 1
    assert "a sync failed: [Errno 5] input/output error" in records[0].getMessage()


@FLUSH
def test_a_log_file_that_somebody_took_away_ends_the_store_before_a_send_counts_as_durable(flush: str):
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk, flush_disk_type=flush)
    end = store.append("old", 0, [draft(b"before")], NOW).end_offset
    disk.remove(store.log.segments.path(0))
    store.flush(1, NOW)
    store.tick(instant(NOW + 600))
    carry_out(store)
    assert "no such file" in str(store.failure)
    assert store.durable_offset < end


def test_a_limit_on_the_size_of_files_refuses_until_it_is_gone(caplog: pytest.LogCaptureFixture):
    health = Health()
    text = health.write_failed("the log", OSError(EFBIG, "File too large", "commitlog/0"))
    assert (health.failure, health.short) == (None, text)
    assert caplog.text.count("commitlog/0") == 1


@pytest.mark.parametrize(("number", "lasts"), [(ENOSPC, False), (EIO, True)])
def test_a_checkpoint_that_cannot_be_written_is_said_and_keeps_nothing_else_from_its_time(number: int, lasts: bool):
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk, flush_disk_type="ASYNC_FLUSH")
    end = store.append("T", 0, [draft(b"1")], NOW).end_offset
    written, broken = store._checkpoint_file.write, OSError(number, "no")
    store._checkpoint_file.write = Mock(side_effect=broken)

    store.tick(instant(NOW + 60_000))
    carry_out(store)

    assert store.durable_offset >= end
    assert store.health.short is not None or store.failure is not None
    assert (store.failure is not None) is lasts
    store._checkpoint_file.write = written
    store.tick(instant(NOW + 180_000))
    carry_out(store)
    assert (store.failure is not None) is lasts
