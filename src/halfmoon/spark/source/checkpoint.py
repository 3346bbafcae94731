"""Offsets of the source in Spark's checkpoint, and the end of the next batch. Pure.

::

    start   {"v": 1, "start": "latest"}                                      the same at every call
    end     {"v": 1, "end": {topic: {broker: {queue: offset}}}, "from": {…}}   "from" for queues that are new in this batch
            "born": {topic: {broker: ms}}}      when topics were created, where brokers report it: a recreated topic is another one
            "since": ms}                       brokers that come in later are read from then on: the start was "latest", or a time

Spark compares offsets as text, so the keys stand in one order: topics and brokers by name, queues by number. A batch reads of each
queue what lies between its lower bound and its end: the lower bound stands in ``from``, or else it is the end before. So the range
of a batch is in the log of the checkpoint before anything of it runs, and running it again reads the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from halfmoon.data.partitions import Range
from halfmoon.data.queue_offsets import Bounds, CreationTimes, Offsets, flat, losses, nested
from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue

VERSION = 1


@dataclass(frozen=True)
class Position:
    """Position of a stream: the next offset of each queue, the first offsets of new queues, and the creation times of topics.

    ``since``: brokers that come in later are read from that time on (ms since the epoch); None: from their first message.
    """

    ends: Offsets
    entered: Offsets
    created: CreationTimes = field(default_factory=dict)
    since: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the position in the form of the checkpoint."""
        offset: dict[str, Any] = {"v": VERSION, "end": nested(self.ends)}
        if self.entered:
            offset["from"] = nested(self.entered)
        for topic, broker in sorted(self.created):
            offset.setdefault("born", {}).setdefault(topic, {})[broker] = self.created[topic, broker]
        if self.since is not None:
            offset["since"] = self.since
        return offset


def start_to_json(start: str) -> dict[str, Any]:
    """Return the offset of a stream that has read nothing; ``start`` is for people who read the checkpoint."""
    return {"v": VERSION, "start": start}


def position_from_json(offset: Mapping[str, Any]) -> Position | None:
    """Return the position of an offset of the checkpoint; None: a start.

    Raises:
        UsageError: it is of another source or version.
    """
    if offset.get("v") == VERSION and set(offset) == {"v", "start"}:
        return None
    if offset.get("v") != VERSION or "end" not in offset or not set(offset) <= {"v", "end", "from", "born", "since"}:
        raise UsageError(
            f"the checkpoint has an offset of another source or version: {str(dict(offset))[:200]}; "
            "use a checkpoint location of its own for each query"
        )
    entered, born, since = offset.get("from", {}), offset.get("born", {}), offset.get("since")
    if since is not None and type(since) is not int:
        raise UsageError(f"this is not a time in ms: {str(since)[:200]}")
    return Position(_offsets_from_json(offset["end"]), _offsets_from_json(entered), _creation_times_from_json(born), since)


def _offsets_from_json(value: Any) -> Offsets:
    try:
        offsets = flat(value)
        if all(type(offset) is int and offset >= 0 for offset in offsets.values()):
            return offsets
    except (AttributeError, ValueError, TypeError):
        pass
    raise UsageError(f"these are not offsets of the shape topic -> broker -> queue -> offset: {str(value)[:200]}")


def _creation_times_from_json(value: Any) -> CreationTimes:
    try:
        created = {(topic, broker): ms for topic, brokers in value.items() for broker, ms in brokers.items()}
        if all(type(ms) is int for ms in created.values()):
            return created
    except AttributeError:
        pass
    raise UsageError(f"these are not creation times of the shape topic -> broker -> ms: {str(value)[:200]}")


def entry_offsets(at: Offsets, bounds: Bounds) -> Offsets:
    """Return the first offsets of new queues, and of those whose next offset is gone: their oldest message."""
    lost = {loss.queue for loss in losses(at, bounds)}
    return {queue: low for queue, (low, _) in bounds.items() if queue not in at or queue in lost}


def next_position(at: Offsets, bounds: Bounds, limit: int | None) -> Position:
    """Return the position after the next batch, of at most ``limit`` messages (None: all that is there).

    The limit is shared in proportion to what each queue has waiting. A queue that vanished keeps its offset. A queue
    whose next offset is gone enters again at its oldest message: call `losses` first when that must not be.
    """
    entered = entry_offsets(at, bounds)
    begins = {**at, **entered}
    backlog = {queue: bounds[queue][1] - begin for queue, begin in begins.items() if queue in bounds and bounds[queue][1] > begin}
    taken = share_limit(backlog, limit) if limit is not None else backlog
    return Position({queue: begin + taken.get(queue, 0) for queue, begin in begins.items()}, entered)


def backlog_count(at: Offsets, bounds: Bounds) -> int:
    """Return the number of messages behind a position."""
    begins = {**at, **entry_offsets(at, bounds)}
    return sum(bounds[queue][1] - begin for queue, begin in begins.items() if queue in bounds)


def share_limit(backlog: Mapping[MessageQueue, int], limit: int) -> Offsets:
    """Return the number of messages to take of each queue: one at least, in proportion to the backlog; ``limit`` in all.

    With more queues than ``limit``, it is one of each, so that no queue waits for ever behind larger ones. The rest of the rounding
    goes to the queues with the largest backlog, one each.
    """
    total, queue_count = sum(backlog.values()), len(backlog)
    if total <= limit:
        return dict(backlog)
    rest = max(0, limit - queue_count)
    shares = {queue: 1 + (count - 1) * rest // max(1, total - queue_count) for queue, count in backlog.items()}
    remainder = max(0, limit - sum(shares.values()))
    for queue in sorted(backlog, key=lambda queue: (-backlog[queue], queue))[:remainder]:
        shares[queue] += 1
    return shares


def ranges_between(start: Position | None, end: Position) -> list[Range]:
    """Return the ranges between two positions, by queue; None: the stream's start.

    Raises:
        UsageError: a queue's end lies before its beginning, or it has none; the checkpoint was damaged or edited.
    """
    before = start.ends if start else {}
    ranges = []
    for queue, upper in sorted(end.ends.items()):
        lower = end.entered.get(queue, before.get(queue))
        if lower is None or lower > upper:
            raise UsageError(f"the checkpoint's offsets of {queue} do not fit together: from {lower} to {upper}")
        if lower < upper:
            ranges.append(Range.of(queue, lower, upper, end.created))
    return ranges
