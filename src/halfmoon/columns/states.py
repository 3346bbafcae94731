"""Entries of the transaction index, made for a turn at once: states of half messages, and units that say what happened to them.

What they mean is told in `halfmoon.store.transactions.state_table` and `halfmoon.store.transactions.redo_log`. Keeps nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error
from typing import Final

from halfmoon.columns.record import ENTRY

STATE = Struct(">qiIii")
"""physical offset i64, size i32, store time in seconds u32, group hash i32, state i32."""
UNIT = Struct(">qiq")
"""physical offset i64, size i32, tag i64."""
NEAR: Final = 64
"""Indexes closer to each other than this are of one run: to write what lies between costs less than another write."""

_PREPARED, _COMMITTED, _ROLLED_BACK = 4, 8, 12
_STATE = Struct(">i")
_STATE_AT = 20

Run = tuple[int, int, int]
"""First index, the one behind the last, and how many of those between are meant."""


def prepared_rows(entries: bytes, store_s: int, group_hash: int) -> tuple[bytes, bytes]:
    """Return states and units of half messages of one producer group, from their queue entries.

    Raises ValueError for numbers that have no place there.
    """
    try:
        rows = list(ENTRY.iter_unpack(entries))
        states = [STATE.pack(place, size, store_s, group_hash, _PREPARED) for place, size, _ in rows]
    except struct_error:
        raise ValueError("a half message does not fit the state table") from None
    return b"".join(states), b"".join([UNIT.pack(place, size, -1) for place, size, _ in rows])


def runs_of(indexes: Sequence[int], per_file: int, block: int) -> list[Run]:
    """Return the runs of what lies near each other, rising; none goes beyond a file of ``per_file``, or a ``block`` of it."""
    runs: list[Run] = []
    first = end = count = 0
    for index in sorted(indexes):
        near = count and index - end < NEAR and index // per_file == first // per_file
        if near and index % per_file // block == first % per_file // block:
            end, count = index + 1, count + 1
            continue
        if count:
            runs.append((first, end, count))
        first, end, count = index, index + 1, 1
    if count:
        runs.append((first, end, count))
    return runs


def decided_rows(
    states: bytes, runs: Sequence[Run], indexes: Sequence[int], entries: bytes, committed: int
) -> tuple[bytes, bytes, list[tuple[int, int]]]:
    """Return the states of ``runs`` with decisions in them, their units, and how many decisions there are of each group hash.

    ``entries`` are those of the records that decided: ``committed`` visible records, the others op records of rollbacks.

    Raises ValueError when one is not pending, or decided twice, or has no entry.
    """
    changed, units, groups = bytearray(states), [], dict[int, int]()
    firsts, begins, at = [], [], 0
    for first, end, _ in runs:
        firsts.append(first)
        begins.append(at - first * STATE.size)
        at += (end - first) * STATE.size
    if len(entries) != ENTRY.size * len(indexes):
        raise ValueError("decisions and records that decide are not as many")
    for number, (index, (place, size, _)) in enumerate(zip(indexes, ENTRY.iter_unpack(entries))):
        run = bisect_right(firsts, index) - 1
        at = begins[run] + index * STATE.size if run >= 0 else -1
        if not 0 <= at <= len(changed) - STATE.size:
            raise ValueError(f"the half message {index} is not pending")
        half_offset, _, _, group_hash, state = STATE.unpack_from(changed, at)
        if state != _PREPARED:
            raise ValueError(f"the half message {index} is not pending")
        _STATE.pack_into(changed, at + _STATE_AT, _COMMITTED if number < committed else _ROLLED_BACK)
        units.append(UNIT.pack(place, size, half_offset if number < committed else -2 - half_offset))
        groups[group_hash] = groups.get(group_hash, 0) + 1
    return bytes(changed), b"".join(units), list(groups.items())
