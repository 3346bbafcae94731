"""What the tests of the transaction index share: the broker's part in small, and what the log itself says of every half message."""

from __future__ import annotations

from itertools import groupby
from random import Random
from typing import Any, NamedTuple

from halfmoon.hot import ENTRY
from halfmoon.instant import instant
from halfmoon.model import java_hash
from halfmoon.ports import Disk
from halfmoon.store import Store, StoreSettings
from halfmoon.store.journal import Kind, Row
from halfmoon.store.layout import HALF_TOPIC, OP_TOPIC
from halfmoon.store.legacy import read_journal
from halfmoon.store.transactions.index import Half, State, TransactionIndex
from halfmoon.store.transactions.watermark import WatermarkRow, read_watermark
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.record import decode_records
from tests.store.driving import HOST, NOW, draft, run, small

REAL = ("orders", 0)
OP_TAG = b"TAGS\x01d\x02"
TABLE, REDO = (f"transaction/{name}" for name in ("statetable/" + "0" * 20, "redolog/" + "0" * 20))
"""The first file of each kind."""
NO_WATERMARK = Row(Kind.WATERMARK, b"", None)


class Truth(NamedTuple):
    """What the log says."""

    halves: dict[int, Half]
    unfinished: set[int]


def settings(**more) -> StoreSettings:
    return small(**{"transaction_file_records": 100, "flush_transactions_interval_ms": 300} | more)


def disk_of(seed: int = 1) -> SimDisk:
    """A disk whose device gets nothing by itself: what is not synced is lost with the power."""
    return SimDisk(Random(seed), write_back=0)


def open_both(disk: Disk, now: int = NOW, settled_below: int = 0, **more) -> tuple[Store, TransactionIndex]:
    chosen = settings(**more)
    store = Store.open(disk, chosen, HOST, instant(now))
    return store, TransactionIndex.open(disk, store, chosen, settled_below=settled_below, now=now)


def move_watermark(disk: Disk, **changed: Any) -> None:
    """Change what the watermark of a store that does not run says."""
    journal = read_journal(disk)
    was = read_watermark(journal)
    assert was is not None
    journal.begin(again=True)
    WatermarkRow(journal).write(was._replace(**changed))
    journal.sync()


def carry_out_both(store: Store, index: TransactionIndex, now: int = NOW) -> None:
    while works := [*store.work(), *index.work()]:
        for work in works:
            run(work, now)


def close_both(store: Store, index: TransactionIndex, now: int = NOW) -> None:
    store.stop(instant(now))
    index.stop(instant(now))
    carry_out_both(store, index, now)
    index.close(instant(now))
    store.close(instant(now))


def save_all(store: Store, index: TransactionIndex, now: int) -> int:
    """Let time pass until everything is synced and the watermark says so; return the time."""
    for _ in range(3):
        now += 2000
        store.tick(instant(now))
        index.tick(now)
        carry_out_both(store, index, now)
    return now


def zero(disk: SimDisk, path: str, at: int, size: int, data: bytes = b"") -> None:
    """Damage a file as no broker would: zeros, or what is given."""
    for file in (disk.open(path).data, disk.open(path).durable):
        file[at : at + size] = data or bytes(size)


# ---------------------------------------------------------------- the broker's part


def add_halves(store: Store, index: TransactionIndex, groups: list[str], now: int = NOW, *, body: bytes = b"half") -> list[int]:
    """Store half messages, one of each group named; return their indexes."""
    drafts = [draft(body, b"PGROUP\x01" + group.encode() + b"\x02TRAN_MSG\x01true\x02") for group in groups]
    appended = store.append(HALF_TOPIC, 0, drafts, now)
    halves = [
        (place, size_at(store, place), now // 1000, java_hash(group)) for place, group in zip(appended.physical_offsets, groups)
    ]
    prepared(index, appended.queue_offset, halves)
    return list(range(appended.queue_offset, appended.queue_offset + len(groups)))


def prepared(index: TransactionIndex, first: int, halves: list[tuple[int, int, int, int]]) -> None:
    """Enter half messages (physical offset, size, store seconds, group hash)."""
    for alike, some in groupby(halves, lambda half: half[2:]):
        entries = b"".join([ENTRY.pack(place, size, 0) for place, size, _, _ in some])
        index.prepared(first, entries, *alike)
        first += len(entries) // ENTRY.size


def decided(index: TransactionIndex, decisions: list[tuple[int, int, int, bool]]) -> None:
    """Enter decisions (index, physical offset, size, committed), commits first."""
    decisions = sorted(decisions, key=lambda one: not one[3])
    entries = b"".join([ENTRY.pack(place, size, 0) for _, place, size, _ in decisions])
    index.decided([one[0] for one in decisions], entries, sum(one[3] for one in decisions))


def size_at(store: Store, place: int) -> int:
    """The size of a record that was just stored, whether readers see it or not."""
    return int.from_bytes(store.log.segments.view(place, 4), "big")


def add_visible(store: Store, index: TransactionIndex, at: int, now: int = NOW) -> tuple[int, int]:
    """Store the visible record of a half message; return its place and size."""
    half = index.half(at)
    assert half is not None
    appended = store.append(*REAL, [draft(b"visible", sys_flag=8, prepared=half.physical_offset)], now)
    place = appended.physical_offsets[0]
    return place, size_at(store, place)


def add_op(store: Store, at: int | str, now: int = NOW) -> tuple[int, int]:
    """Store an op record; return its place and size."""
    appended = store.append(OP_TOPIC, 0, [draft(str(at).encode(), OP_TAG, tag=100)], now)
    place = appended.physical_offsets[0]
    return place, size_at(store, place)


def commit(store: Store, index: TransactionIndex, at: int, now: int = NOW) -> None:
    place, size = add_visible(store, index, at, now)
    add_op(store, at, now)
    decided(index, [(at, place, size, True)])


def roll_back(store: Store, index: TransactionIndex, at: int, now: int = NOW) -> None:
    decided(index, [(at, *add_op(store, at, now), False)])


def some_work(store: Store, index: TransactionIndex, count: int, seed: int = 1) -> None:
    """Half messages of three groups, of which about a third each is committed, rolled back, and left."""
    random = Random(seed)
    for number in range(count):
        [at] = add_halves(store, index, [f"group-{number % 3}"])
        choice = random.randrange(3)
        if choice == 0:
            commit(store, index, at)
        elif choice == 1:
            roll_back(store, index, at)


# ---------------------------------------------------------------- what the log says


def truth_of(store: Store, topics: tuple[tuple[str, int], ...] = (REAL,)) -> Truth:
    """Read the queues, in the order of the log, with the decoder of the wire, and decide everything again in a dictionary."""
    records = []
    for topic, queue_id in ((HALF_TOPIC, 0), (OP_TOPIC, 0), *topics):
        offset = store.queue_min(topic, queue_id)
        while offset < store.queue_max(topic, queue_id):
            found = store.read(topic, queue_id, offset, 32)
            records += [record for piece in found.pieces for record in decode_records(piece)]
            offset = found.next_offset
    halves: dict[int, Half] = {}
    places: dict[int, int] = {}
    unfinished: set[int] = set()
    for record in sorted(records, key=lambda each: each.physical_offset):
        if record.topic == HALF_TOPIC:
            halves[record.queue_offset] = Half(
                record.queue_offset, record.physical_offset, record.size_bytes, record.store_ms // 1000,
                java_hash(record.properties.get("PGROUP", "")), State.PREPARED,
            )  # fmt: skip
            places[record.physical_offset] = record.queue_offset
        elif record.topic == OP_TOPIC:
            for part in record.body.split(b","):
                at = int(part) if part else -1
                if at in halves and halves[at].state is State.PREPARED:
                    halves[at] = halves[at]._replace(state=State.ROLLED_BACK)
                unfinished.discard(at)
        elif record.sys_flag & 12 == 8 and record.prepared_transaction_offset in places:
            at = places[record.prepared_transaction_offset]
            if halves[at].state is State.PREPARED:
                halves[at] = halves[at]._replace(state=State.COMMITTED)
                unfinished.add(at)
    return Truth(halves, unfinished)


def assert_agrees(index: TransactionIndex, truth: Truth) -> None:
    """The index says of every half message what the log says, and of nothing else anything."""
    known = {at: half for at in range(index.first, index.end) if (half := index.half(at)) is not None and half.size}
    assert known == truth.halves
    pending = [half for _, half in sorted(truth.halves.items()) if half.state is State.PREPARED]
    assert index.pending_count == len(pending)
    groups: dict[int, int] = {}
    for half in pending:
        groups[half.group_hash] = groups.get(half.group_hash, 0) + 1
    assert dict(index.pending_by_group) == groups
    assert index.lowest_pending() == (pending[0].index if pending else index.end)
    found, at = [], 0
    while at < index.end:
        part, at = index.pending(at, 7, 50)
        found += part
    assert found == pending
