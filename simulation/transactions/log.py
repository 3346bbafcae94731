"""Transactions in a broker's log, and the state table that follows from it. Reads a `ports.Disk`, writes nothing.

Written from the formats alone, without the code of store and broker, as `simulation.damage.rebuild`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple, cast

from halfmoon.model import StoredMessage, java_hash
from halfmoon.ports import Disk
from halfmoon.testing.disk import SimDisk, SimFile
from halfmoon.wire.record import decode_record
from simulation.damage.rebuild import walk_log
from simulation.transactions.producers import key_of

HALF_TOPIC, OP_TOPIC, EXPIRED_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
PREPARED, COMMITTED, ROLLED_BACK = 4, 8, 12
"""States of the table."""
EXPIRED = -1
"""An outcome: nobody has decided it, and it is settled. The table has it as rolled back."""

_STATE = Struct(">qiIii")  # | physical offset | size | store time, seconds | group hash | state |
_TABLE = "transaction/statetable"


class HalfRecord(NamedTuple):
    """A half message as the log has it; ``index`` is its half queue offset."""

    physical_offset: int
    size: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    key: str
    group: str
    topic: str
    queue_id: int
    body: bytes
    store_ms: int
    resumed: bool
    """It was made of the copy of one that expired."""


class VisibleRecord(NamedTuple):
    """Record that a commit stored; ``half_offset`` is the physical offset of its half message."""

    physical_offset: int
    half_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    key: str
    body: bytes
    store_ms: int


class ExpiredRecord(NamedTuple):
    """A half message that expired, copied; ``history`` has a second and an answer for each of its last checks."""

    physical_offset: int
    half_offset: int
    key: str
    group: str
    reason: str
    checks: int
    history: list[tuple[int, str]]
    store_ms: int


@dataclass
class TxLog:
    """All records of one log that concern transactions, in its order. ``first`` is where the log begins."""

    first: int = 0
    halves: dict[int, HalfRecord] = field(default_factory=dict)  # by index
    visible: list[VisibleRecord] = field(default_factory=list)
    ops: list[tuple[int, int]] = field(default_factory=list)  # physical offset, index
    deciders: dict[int, str] = field(default_factory=dict)
    """Operators who decided by hand, by index, as op records say."""
    expired: list[ExpiredRecord] = field(default_factory=list)
    late_rollbacks: set[int] = field(default_factory=set)
    """Places of half messages that were rolled back after they expired."""

    def by_place(self) -> dict[int, HalfRecord]:
        """Return the half messages by physical offset."""
        return {half.physical_offset: half for half in self.halves.values()}

    def resumed(self) -> list[HalfRecord]:
        """Return the half messages that were made of copies."""
        return [half for half in self.halves.values() if half.resumed]

    def copied(self) -> set[int]:
        """Return the physical offsets of half messages that expired, and have a copy."""
        return {record.half_offset for record in self.expired}

    def states(self) -> dict[int, int]:
        """Return what the table says of each half message that the log has: the first record about it decides."""
        places = self.by_place()
        decided: dict[int, int] = {}
        steps = [
            (record.physical_offset, places[record.half_offset].index, COMMITTED)
            for record in self.visible
            if record.half_offset in places
        ]
        steps += [(place, index, ROLLED_BACK) for place, index in self.ops]
        for _, index, state in sorted(steps):
            decided.setdefault(index, state)
        return {index: decided.get(index, PREPARED) for index in self.halves}

    def newest(self) -> dict[int, int]:
        """Return for each half message the one that speaks for it: what it was resumed as the last time, or itself."""
        resumed = {half.key: half for half in sorted(self.resumed())}
        copies = {copy.half_offset: copy.physical_offset for copy in self.expired}
        return {
            index: later.index
            if (later := resumed.get(half.key)) is not None
            and later.physical_offset > copies.get(half.physical_offset, later.physical_offset)
            else index
            for index, half in self.halves.items()
        }

    def outcomes(self) -> dict[int, int]:
        """Return what became of each half message in the end, over expiry, late decisions and resumes."""
        states, newest = self.states(), self.newest()
        copies, visible = self.copied(), {record.half_offset for record in self.visible}
        last: dict[int, int] = {}
        for index, half in self.halves.items():
            place, last[index] = half.physical_offset, states[index]
            if place in copies and states[index] == ROLLED_BACK:
                last[index] = COMMITTED if place in visible else ROLLED_BACK if place in self.late_rollbacks else EXPIRED
        return {index: last[newest[index]] for index in self.halves}


def read_log(disk: Disk | Device) -> TxLog:
    """Read what the log of a store says about transactions."""
    names = disk.list("commitlog")
    log = TxLog(int(names[0]) if names else 0)
    for view in walk_log(cast(Disk, disk)):
        message = decode_record(view)
        if message.topic == HALF_TOPIC:
            log.halves[message.queue_offset] = _half(message)
        elif message.topic == OP_TOPIC:
            _add_op(log, message)
        elif message.topic == EXPIRED_TOPIC:
            log.expired.append(_copy(message))
        elif message.sys_flag & 12 == 8:
            log.visible.append(
                VisibleRecord(
                    message.physical_offset, message.prepared_transaction_offset, message.topic, message.queue_id,
                    message.queue_offset, key_of(message.body), message.body, message.store_ms,
                )
            )  # fmt: skip
    return log


def _half(message: StoredMessage) -> HalfRecord:
    properties = message.properties
    return HalfRecord(
        message.physical_offset, message.size_bytes, message.queue_offset, key_of(message.body), properties.get("PGROUP", ""),
        properties.get("REAL_TOPIC", ""), int(properties.get("REAL_QID", "-1")), message.body, message.store_ms,
        "TRANSACTION_CHECK_TIMES" in properties,
    )  # fmt: skip


def _add_op(log: TxLog, message: StoredMessage) -> None:
    """Add an op record: it settles half messages by index; -1 stands for one that expired before it was rolled back."""
    indexes = [int(text) for text in message.body.split(b",") if text]
    if indexes == [-1]:
        log.late_rollbacks.add(message.prepared_transaction_offset)
        return
    log.ops += [(message.physical_offset, index) for index in indexes]
    if "DECIDED_BY" in message.properties:
        log.deciders |= dict.fromkeys(indexes, message.properties["DECIDED_BY"])


def _copy(message: StoredMessage) -> ExpiredRecord:
    properties = message.properties
    history = [entry.split(":") for entry in properties.get("TRANSACTION_CHECK_HISTORY", "").split()]
    return ExpiredRecord(
        message.physical_offset, message.prepared_transaction_offset, key_of(message.body), properties.get("PGROUP", ""),
        properties.get("TRANSACTION_EXPIRED_REASON", ""), int(properties.get("TRANSACTION_CHECK_TIMES", "0")),
        [(int(entry[0]), entry[1]) for entry in history], message.store_ms,
    )  # fmt: skip


class Device:
    """Device of a simulated disk: the bytes that would be left if the power went now."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str) -> _OnDevice:
        """Open a file as the device has it."""
        return _OnDevice(self._disk.open(path))


class _OnDevice:
    def __init__(self, file: SimFile) -> None:
        self._file = file

    def view(self, at: int, size: int) -> memoryview:
        """Return bytes without copying."""
        return memoryview(self._file.durable)[at : at + size]


def table_differs(disk: Disk, log: TxLog) -> list[str]:
    """Return how the state table of a cleanly stopped store differs from what its log says."""
    table, states = dict(_table(disk)), log.states()
    problems = []
    for index, half in log.halves.items():
        expected = (half.physical_offset, half.size, half.store_ms // 1000, java_hash(half.group), states[index])
        if table.get(index) != expected:
            problems.append(f"half message {index} ({half.key}) is {table.get(index)} and should be {expected}")
    problems += [
        f"half message {index} is {record}, which the log does not say"
        for index, record in table.items()
        if index not in log.halves and record[0] >= log.first
    ]
    return problems


def _table(disk: Disk) -> Iterator[tuple[int, tuple[int, int, int, int, int]]]:
    for name in disk.list(_TABLE):
        size = disk.file_size(f"{_TABLE}/{name}")
        view = disk.open(f"{_TABLE}/{name}").view(0, size)
        for place in range(size // _STATE.size):
            record = _STATE.unpack_from(view, place * _STATE.size)
            if record[1]:
                yield int(name) // _STATE.size + place, record
