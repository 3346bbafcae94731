"""Groups of several queues stored at once: as if each had come by itself, with one write to the log, and each with its own fate."""

from __future__ import annotations

from errno import ENOSPC
from random import Random
from typing import Any

import pytest

from halfmoon.errors import MessageIllegal, StoreNotWritable
from halfmoon.hot import DURABLE, Group, Messages
from halfmoon.store import Store
from halfmoon.store.store import Appended
from halfmoon.testing.disk import SimDisk, SimFile
from tests.store.driving import NOW, carry_out, close, draft, open_store, read_all

QUEUES = [("A", 0), ("A", 1), ("B", 0)]


def group(queue: int, *sizes: int, apart: bool = True) -> Group:
    """Messages of one of `QUEUES`, each of a request of its own, or all of one."""
    messages = Messages([draft(bytes(size), b"UNIQ_KEY\x01%d\x02" % size) for size in sizes])
    for number, count in enumerate([1] * len(sizes) if apart else [len(sizes)]):
        messages.sent(number, number, 0, DURABLE, count)
    return (*QUEUES[queue], "", messages)


def everything(store: Store, disk: SimDisk) -> tuple[object, ...]:
    """What is in the queues, and in the files of the log."""
    names = disk.list("commitlog")
    return [read_all(store, *queue) for queue in QUEUES], names, [disk.read(f"commitlog/{name}") for name in names]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("seed", range(10))
def test_groups_lie_as_if_each_had_been_appended_by_itself(seed: int, flush: str):
    random = Random(seed)
    turns = [
        [(random.randrange(3), [random.randrange(2000) for _ in range(random.randint(1, 6))], random.random() < 0.5)
         for _ in range(random.randint(1, 5))]
        for _ in range(20)
    ]  # fmt: skip
    disks = SimDisk(Random(1)), SimDisk(Random(1))
    together, alone = (open_store(disk, flush_disk_type=flush, commit_log_file_bytes=16 * 1024) for disk in disks)
    for turn in turns:
        stored = together.append_all([group(queue, *sizes, apart=apart) for queue, sizes, apart in turn], NOW)
        assert stored == [alone.append(*QUEUES[queue], group(queue, *sizes, apart=apart)[3], NOW) for queue, sizes, apart in turn]
        for store in (together, alone):
            store.flush(1, NOW)
            carry_out(store)
    assert everything(together, disks[0]) == everything(alone, disks[1])
    there = everything(alone, disks[1])[0]
    close(together)
    assert everything(open_store(disks[0], commit_log_file_bytes=16 * 1024), disks[0])[0] == there


def test_the_log_is_written_once(monkeypatch: pytest.MonkeyPatch):
    store = open_store(SimDisk(Random(1)))
    store.append_all([group(0, 10), group(1, 10), group(2, 10)], NOW)
    written: list[str] = []
    write = SimFile.write
    monkeypatch.setattr(SimFile, "write", lambda file, at, data: written.append(file.path.split("/")[0]) or write(file, at, data))
    store.append_all([group(0, 10, 20), group(1, 10), group(2, 10)], NOW)
    assert written == ["commitlog", "checkpoint"]  # where the log ends


def test_a_group_that_cannot_be_stored_leaves_the_others_where_they_were():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    first, too_large, none, last = store.append_all(
        [group(0, 10), group(1, 70_000), ("", 0, "", group(0, 1)[3]), group(1, 20)], NOW
    )
    assert isinstance(too_large, MessageIllegal)
    assert isinstance(none, Exception)
    assert isinstance(first, Appended)
    assert isinstance(last, Appended)
    assert (first.end_offset, first.queue_offset) == (last.physical_offsets[0], last.queue_offset)
    assert [len(read_all(store, *queue)) for queue in QUEUES] == [1, 1, 0]


@pytest.mark.parametrize("sizes", [(10, 10, 10), (10, 20_000, 10), (20_000, 20_000, 20_000)])
@pytest.mark.parametrize("number", range(1, 8))
def test_of_what_is_refused_nothing_is_there_and_offsets_go_on(number: int, sizes: tuple[int, ...], monkeypatch: Any):
    store = open_store(SimDisk(Random(1)), commit_log_file_bytes=32 * 1024)
    store.append_all([group(queue, 10) for queue in range(3)], NOW)
    written: list[str] = []
    write = SimFile.write

    def refuse(file: SimFile, at: int, data: bytes) -> None:
        if file.path.startswith("commitlog") and data.count(0) < len(data):
            written.append(file.path)
            if len(written) == number:
                raise OSError(ENOSPC, "no space left on device", file.path)
        write(file, at, data)

    before = store.end_offset
    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "write", refuse)
        stored = store.append_all([group(queue, size) for queue, size in enumerate(sizes)], NOW)
    kept = [one for one in stored if isinstance(one, Appended)]
    assert all(isinstance(one, Appended | StoreNotWritable) for one in stored)
    assert len(kept) < 3 or len(written) < number
    if len(written) >= number:
        assert store.end_offset >= max((one.end_offset for one in kept), default=before)
    again = store.append_all([group(queue, 30) for queue in range(3)], NOW + 60_000)
    carry_out(store)
    for queue, (was, now) in enumerate(zip(stored, again)):
        assert isinstance(now, Appended)
        assert now.queue_offset == 1 + isinstance(was, Appended)
        assert sorted(read_all(store, *QUEUES[queue])) == list(range(now.queue_offset + 1))


@pytest.mark.parametrize("number", range(1, 8))
def test_a_log_that_cannot_even_be_made_zero_again_goes_on_where_it_ended(number: int, monkeypatch: pytest.MonkeyPatch):
    store = open_store(SimDisk(Random(1)), commit_log_file_bytes=32 * 1024)
    store.append_all([group(queue, 10) for queue in range(3)], NOW)
    written: list[str] = []
    write = SimFile.write

    def refuse(file: SimFile, at: int, data: bytes) -> None:
        if file.path.startswith("commitlog"):
            written.append(file.path)
            if len(written) >= number:
                raise OSError(ENOSPC, "no space left on device", file.path)
        write(file, at, data)

    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "write", refuse)
        stored = store.append_all([group(0, 20_000), group(1, 20_000, 20_000), group(2, 20_000)], NOW)
    assert all(isinstance(one, Appended | StoreNotWritable) for one in stored)
    again = store.append_all([group(queue, 30) for queue in range(3)], NOW + 60_000)
    assert all(isinstance(one, Appended) for one in again)


def test_of_a_write_that_fails_half_way_nothing_is_found_by_the_next_start(monkeypatch: pytest.MonkeyPatch):
    disk = SimDisk(Random(1))
    store = open_store(disk)
    store.append_all([group(queue, 10) for queue in range(3)], NOW)
    write = SimFile.write

    def some(file: SimFile, at: int, data: bytes) -> None:
        if file.path.startswith("commitlog") and data.count(0) < len(data):
            write(file, at, data[: len(data) * 2 // 3])
            raise OSError(ENOSPC, "no space left on device", file.path)
        write(file, at, data)

    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "write", some)
        stored = store.append_all([group(queue, 10) for queue in range(3)], NOW)
    assert [type(one) for one in stored] == [StoreNotWritable] * 3
    disk.crash(power=False)
    store = open_store(disk)
    assert [len(read_all(store, *queue)) for queue in QUEUES] == [1, 1, 1]


def test_one_write_that_is_refused_refuses_all_whose_records_it_had(monkeypatch: pytest.MonkeyPatch):
    store = open_store(SimDisk(Random(1)))
    store.append_all([group(queue, 10) for queue in range(3)], NOW)
    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "write", _no_room)
        stored = store.append_all([group(0, 10), group(1, 70_000), group(2, 10)], NOW)
    assert [type(one) for one in stored] == [StoreNotWritable, MessageIllegal, StoreNotWritable]
    assert [len(read_all(store, *queue)) for queue in QUEUES] == [1, 1, 1]


def _no_room(file: SimFile, at: int, data: bytes) -> None:
    raise OSError(ENOSPC, "no space left on device", file.path)
