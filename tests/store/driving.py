"""What the store's tests share: small files, drafts, and carrying out what a store leaves to be done."""

from __future__ import annotations

from random import Random

from halfmoon.effects import Work
from halfmoon.hot import ENTRY
from halfmoon.instant import instant
from halfmoon.ports import Disk
from halfmoon.store import Draft, ReadResult, ReadStatus, Store, StoreSettings
from halfmoon.store.journal import Row
from halfmoon.store.legacy import read_journal
from halfmoon.store.records import RecordFacts, check_at
from halfmoon.testing.disk import SimDisk

HOST = bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F])
BORN = bytes([10, 0, 0, 2, 0, 0, 0xC3, 0x50])
NOW = 1_700_000_000_000


def small(**settings) -> StoreSettings:
    """Settings with files that a few messages fill."""
    return StoreSettings(
        **{"commit_log_file_bytes": 64 * 1024, "queue_file_bytes": 6000, "hash_slots": 64, "index_entries_max": 100} | settings
    )


def open_store(disk: Disk, now: int = NOW, **settings) -> Store:
    return Store.open(disk, small(**settings), HOST, instant(now))


def draft(body: bytes = b"hello", properties: bytes = b"", *, flag=0, sys_flag=0, born=BORN, tag=0, prepared=0) -> Draft:
    return (body, properties, flag, sys_flag, NOW - 5, born, 0, prepared, tag)


def entries_of(numbers: list[int]) -> bytes:
    """Return queue entries of physical offset, size and tag code, flat."""
    return b"".join(ENTRY.pack(*numbers[at : at + 3]) for at in range(0, len(numbers), 3))


def carry_out(store: Store, now: int = NOW) -> None:
    """Do all work there is, in order, until none is left."""
    while works := store.work():
        for work in works:
            run(work, now)


def run(work: Work, now: int = NOW) -> None:
    try:
        result = work.run()
    except OSError as exc:
        result = exc
    work.done(result, instant(now))


def close(store: Store, now: int = NOW) -> None:
    store.stop(instant(now))
    carry_out(store, now)
    store.close(instant(now))


def disk_without_a_log_file() -> SimDisk:
    """A disk whose log, closed in peace, lacks the second of its files."""
    disk = SimDisk(Random(1))
    store = open_store(disk)
    for _ in range(4):
        store.append("t", 0, [draft(bytes(60_000))], NOW)
    close(store)
    disk.remove("commitlog/00000000000000065536")
    return disk


def facts_of(found: ReadResult) -> list[tuple[int, RecordFacts, bytes]]:
    """The records of a read: (physical offset, facts, body)."""
    records = []
    for piece in found.pieces:
        at = 0
        while at < len(piece):
            physical_offset = int.from_bytes(piece[at + 28 : at + 36], "big")
            facts = check_at(piece, at, physical_offset)
            assert isinstance(facts, RecordFacts)
            records.append((physical_offset, facts, bytes(piece[at + facts.body_at : at + facts.body_at + facts.body_bytes])))
            at += facts.size_bytes
    return records


def read_all(store: Store, topic: str, queue_id: int) -> dict[int, tuple[bytes, int]]:
    """Every message of a queue: queue offset to body and physical end."""
    bodies: dict[int, tuple[bytes, int]] = {}
    offset = store.queue_min(topic, queue_id)
    while True:
        found = store.read(topic, queue_id, offset, 32)
        for physical_offset, facts, body in facts_of(found):
            assert (facts.topic, facts.queue_id) == (topic, queue_id)
            bodies[facts.queue_offset] = (body, physical_offset + facts.size_bytes)
        if found.status not in (ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING):
            return bodies
        offset = found.next_offset


def edit_journal(disk: Disk, *rows: Row) -> None:
    """Write rows into the journal of a store that does not run."""
    journal = read_journal(disk)
    journal.begin(again=True)
    journal.write(*rows)
    journal.sync()
    journal.close()


def use_offsets_up(store: Store, topic: str, queue_id: int, count: int) -> None:
    """Let a queue go on behind so many offsets without a message, as after a power loss."""
    queue = store.queues[topic, queue_id]
    floor = queue.next_offset + count
    store._reservations.raise_floors({(topic, queue_id): floor})
    queue.next_offset, queue.room = floor, 0
