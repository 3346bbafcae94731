"""State of a directory that an older version wrote, before there was a journal: reads five formats, whose rows the journal takes.

Once the journal is on the device their files are removed; where there is one already, they count for nothing. An older version that
ran on a directory with a journal is one broker more that knows nothing of it. Writes nothing.

* ``config/queueReserve``, ``config/inventory`` and files behind them with a number (``.1``): slots of 256 bytes, of which the first
  of each file is its header: crc u32 of what follows | kind u16 | length of the name u16 | queueId i32 | value | name 128.
* ``checkpoint`` at 1 and 2 KiB, ``transaction/checkpoint`` at 0 and 2 KiB: two slots, written in turn: magic 8 | version u32 |
  flags u32 | sequence u64 | value | crc u32 of all before.
* ``delay/progress``: two slots of 4 KiB, written in turn: magic 8 | sequence u64 | value | crc u32 of all before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import itemgetter
from struct import Struct
from zlib import crc32

from halfmoon.ports import Disk
from halfmoon.store.journal import Journal, Kind, Row
from halfmoon.store.layout import CHECKPOINT, TRANSACTION

_RESERVATIONS, _INVENTORY, _DELAYS = "config/queueReserve", "config/inventory", "delay/progress"
_WATERMARK = f"{TRANSACTION}/checkpoint"
_TABLE_FILE = re.compile(r"(?:queueReserve|inventory|queueEnds)(?:\.[1-9][0-9]{0,3})?")

_SLOT = Struct(">IHHi")
_SLOT_BYTES, _NAME_BYTES = 256, 128
_RESERVATION = Struct(">qq")
_INVENTORY_KINDS = {1: Kind.QUEUE, 2: Kind.INDEX, 3: Kind.REBUILT, 4: Kind.SIZES, 5: Kind.DELETED}
_TURN = Struct(">8sIIQ")
_DELAY_COUNTS = Struct(">qiiqq")
_DELAY_AT, _DELAY_SLOT_BYTES = 16, 4096


def read_journal(disk: Disk) -> Journal:
    """Return the journal of a directory, with the rows of an older version where there is none. Changes nothing; raises OSError."""
    journal = Journal(disk)
    names = [name for name in disk.list("config") if _TABLE_FILE.fullmatch(name)]
    paths = [*(f"config/{name}" for name in names), *filter(disk.exists, (_WATERMARK, _DELAYS, "delay"))]
    journal.adopt([] if journal.there else [*_reservations(disk), *_inventory(disk), *_in_turn(disk), *_delays(disk)], paths)
    return journal


def _slots(disk: Disk, path: str, value_bytes: int) -> Iterator[tuple[int, bytes, bytes, bytes]]:
    """Yield kind, queueId, name and value of each slot that is whole."""
    directory, _, start = path.rpartition("/")
    for name in disk.list(directory):
        data = disk.read(f"{directory}/{name}") or b"" if name.partition(".")[0] == start and _TABLE_FILE.fullmatch(name) else b""
        for at in range(_SLOT_BYTES, len(data), _SLOT_BYTES):
            body = data[at : at + _SLOT.size + value_bytes + _NAME_BYTES]
            crc, kind, length, _ = _SLOT.unpack_from(body)
            if kind and crc == crc32(body[4:]):
                value, text = body[_SLOT.size : _SLOT.size + value_bytes], body[_SLOT.size + value_bytes :]
                yield kind, body[8 : _SLOT.size], text[:length], value


def _reservations(disk: Disk) -> Iterator[Row]:
    """Yield reservations; each queue had two slots, of which the larger numbers count."""
    found: dict[bytes, tuple[int, int]] = {}
    for _, queue_id, topic, value in _slots(disk, _RESERVATIONS, _RESERVATION.size):
        reserved, floor = _RESERVATION.unpack(value)
        other = found.get(queue_id + topic, (0, 0))
        found[queue_id + topic] = max(reserved, other[0]), max(floor, other[1])
    for key, numbers in found.items():
        yield Row(Kind.RESERVATION, key, _RESERVATION.pack(*numbers))


def _inventory(disk: Disk) -> Iterator[Row]:
    # Of one deleted topic there may be two rows: the one of the later deletion, the larger value, comes last and counts.
    for kind, queue_id, name, value in sorted(_slots(disk, _INVENTORY, 48), key=itemgetter(3)):
        if kind in _INVENTORY_KINDS:
            yield Row(_INVENTORY_KINDS[kind], queue_id + name if kind in (1, 3) else name, value)


def _in_turn(disk: Disk) -> Iterator[Row]:
    """Yield checkpoint and watermark: of each the newest slot that is whole. Their values begin with the flags."""
    for kind, path, places, size in (
        (Kind.CHECKPOINT, CHECKPOINT, (1024, 2048), 64), (Kind.WATERMARK, _WATERMARK, (0, 2048), 120),
    ):  # fmt: skip
        data = disk.read(path) or b""
        found = []
        for at in places if len(data) >= 4096 else ():
            slot = data[at : at + _TURN.size + size]
            magic, version, flags, sequence = _TURN.unpack_from(slot)
            same_run = kind == Kind.WATERMARK or slot.endswith(data[:24])  # another broker moves the times alone
            crc = int.from_bytes(data[at + len(slot) :][:4], "big")
            if (magic, version, crc) == (b"halfmoon", 1, crc32(slot)) and same_run:
                found.append((sequence, bytes([flags]) + slot[_TURN.size :]))
        if found:
            yield Row(kind, b"", max(found)[1])


def _delays(disk: Disk) -> Iterator[Row]:
    data = disk.read(_DELAYS) or b""
    found = []
    for slot in (data[at : at + _DELAY_SLOT_BYTES] for at in range(0, len(data), _DELAY_SLOT_BYTES)):
        if slot.startswith(b"halfdly3") and len(slot) == _DELAY_SLOT_BYTES:
            _, levels, begun, _, marks = _DELAY_COUNTS.unpack_from(slot, _DELAY_AT)
            end = _DELAY_AT + _DELAY_COUNTS.size + 12 * levels + 16 * begun + 24 * marks
            if 0 < end <= len(slot) - 4 and int.from_bytes(slot[end : end + 4], "big") == crc32(slot[:end]):
                found.append((slot[8:_DELAY_AT], slot[_DELAY_AT:end]))
    if found:
        yield Row(Kind.DELAYS, b"", max(found)[1])
