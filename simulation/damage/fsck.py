"""Judges what `fsck` says of a store whose log was damaged: all that is damaged is named, and nothing that is whole.

Where the log has no whole record is found from the format, without the store's code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from halfmoon.store.check.fsck import Problem
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.record import decode_record
from simulation.damage.rebuild import walk_log

PROBLEMS_MAX = 5
_BLANK_MAGIC = (-875286124).to_bytes(4, "big", signed=True)
_IN_LOG = re.compile(r"commitlog/(\d{20}), byte (\d+)")
_IN_INDEX = re.compile(r"index, physical offset (\d+)")
_IN_QUEUE = re.compile(r"(\S+), queue (\d+)(?:, offset \d+)?")
TRANSACTIONS = "transaction/"


class PlantedDamage(NamedTuple):
    """Damage of a broker's log since its first start: records by physical offset, and their queues."""

    places: frozenset[int]
    queues: frozenset[tuple[str, int]]


def judge_fsck(disk: SimDisk, problems: Iterable[Problem], damage: PlantedDamage, *, transactions: bool = True) -> list[str]:
    """Return what `fsck` did not name, and what it called damaged without a reason, of a store that was stopped cleanly.

    ``transactions``: something of a transaction was hit, so that the index of transactions may differ from the log.
    """
    records, gaps = _records_and_gaps(disk)
    complaints, named = [], set[tuple[int, int]]()
    for problem in problems:
        if found := _IN_LOG.fullmatch(problem.place):
            at = int(found[1]) + int(found[2])
            gap = next((gap for gap in gaps if gap[0] <= at < gap[1]), None)
            if gap is None:
                complaints.append(f"{problem} is not in a damaged part of the log")
            else:
                named.add(gap)
        elif found := _IN_INDEX.fullmatch(problem.place):
            if int(found[1]) in records and int(found[1]) not in damage.places:
                complaints.append(f"{problem} is about a record that is whole")
        elif found := _IN_QUEUE.fullmatch(problem.place):
            if (found[1], int(found[2])) not in damage.queues:
                complaints.append(f"{problem} is about a queue of which nothing was damaged")
        elif not (transactions and problem.place.startswith(TRANSACTIONS)):
            complaints.append(f"{problem} is about nothing that was damaged")
    complaints += [
        f"nothing is said of bytes {begin} to {end} of the log, where no record is"
        for begin, end in gaps
        if (begin, end) not in named
    ]
    return complaints[:PROBLEMS_MAX]


def _records_and_gaps(disk: SimDisk) -> tuple[set[int], list[tuple[int, int]]]:
    """Return where whole records begin, and the parts of the log that are none: from where one should begin to the next one."""
    spans = [(decode_record(view).physical_offset, len(view)) for view in walk_log(disk)]
    names, gaps = disk.list("commitlog"), list[tuple[int, int]]()
    for name in names:
        for begin, end in _gaps(disk, name, spans, last=name == names[-1]):
            if gaps and gaps[-1][1] == begin:  # it goes on in the next file
                begin = gaps.pop()[0]
            gaps.append((begin, end))
    return {at for at, _ in spans}, gaps


def _gaps(disk: SimDisk, name: str, spans: list[tuple[int, int]], *, last: bool) -> Iterator[tuple[int, int]]:
    data, base = bytes(disk.open(f"commitlog/{name}").data), int(name)
    expected = 0
    for at, size in spans:
        if base <= at < base + len(data):
            if at - base > expected:
                yield base + expected, at
            expected = at - base + size
    rest = data[expected:]
    if len(rest) < 8 or (rest[4:8] == _BLANK_MAGIC and int.from_bytes(rest[:4], "big") == len(rest)):
        return
    if any(rest) or not last:
        yield base + expected, base + len(data)
