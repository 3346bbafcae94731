"""What Spark writes into a checkpoint about our source, and how far the next batch goes. Pure.

::

    start   {"v": 1, "start": "latest"}                                      the same at every call
    end     {"v": 1, "end": {topic: {broker: {queue: offset}}}, "from": {…}}   "from" for queues that enter in this batch
            "born": {topic: {broker: ms}}}      when topics were made, where brokers tell: of which topic the offsets speak

Spark compares offsets as text, so the keys stand in one order: topics and brokers by name, queues by number. A batch reads of each
queue what lies between its lower bound and its end: the lower bound stands in ``from``, or else it is the end before. So the range
of a batch is in the log of the checkpoint before anything of it runs, and running it again reads the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue
from halfmoon.spark.source.plan import Range

Offsets = dict[MessageQueue, int]
Bounds = Mapping[MessageQueue, tuple[int, int]]
"""Of each queue the offset of its first message that is still there, and the one behind its last."""

Births = Mapping[tuple[str, str], int]
"""When topics were made, ms since the epoch, by topic and broker."""

VERSION = 1


@dataclass(frozen=True)
class Position:
    """How far a stream has come: the next offset of each queue, where those begin that enter with this batch, of which topics."""

    ends: Offsets
    entered: Offsets
    births: Births = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what is written into the checkpoint."""
        found: dict[str, Any] = {"v": VERSION, "end": _nested(self.ends)}
        if self.entered:
            found["from"] = _nested(self.entered)
        for topic, broker in sorted(self.births):
            found.setdefault("born", {}).setdefault(topic, {})[broker] = self.births[topic, broker]
        return found


@dataclass(frozen=True)
class Loss:
    """Messages that a stream should have read and that are gone: the offset it stands at, and what the queue has."""

    queue: MessageQueue
    next_offset: int
    min_offset: int
    max_offset: int

    def __str__(self) -> str:
        name = f"{self.queue.topic} {self.queue.broker_name} queue {self.queue.queue_id}"
        if self.next_offset < self.min_offset:
            return f"{name}: offsets {self.next_offset} to {self.min_offset - 1} are gone; the oldest there is {self.min_offset}"
        return f"{name}: read up to {self.next_offset}, but it ends at {self.max_offset}; was the topic made anew, or a store lost?"


def start_json(start: str) -> dict[str, Any]:
    """Return the offset of a stream that has read nothing; ``start`` is for people who read the checkpoint."""
    return {"v": VERSION, "start": start}


def position(found: Mapping[str, Any]) -> Position | None:
    """Return what an offset of the checkpoint says, None for a start.

    Raises:
        UsageError: it is not one of ours.
    """
    if found.get("v") == VERSION and set(found) == {"v", "start"}:
        return None
    if found.get("v") != VERSION or "end" not in found or not set(found) <= {"v", "end", "from", "born"}:
        raise UsageError(
            f"the checkpoint has an offset of another source or version: {str(dict(found))[:200]}; "
            "use a checkpoint location of its own for each query"
        )
    return Position(flat(found["end"]), flat(found.get("from", {})), _births(found.get("born", {})))


def flat(found: Any) -> Offsets:
    """Return offsets by queue from topic -> broker -> queue -> offset. Raises UsageError."""
    try:
        offsets = {
            MessageQueue(topic, broker, int(queue)): offset
            for topic, brokers in found.items()
            for broker, queues in brokers.items()
            for queue, offset in queues.items()
        }
        if all(type(offset) is int and offset >= 0 for offset in offsets.values()):
            return offsets
    except (AttributeError, ValueError, TypeError):
        pass
    raise UsageError(f"these are not offsets of the shape topic -> broker -> queue -> offset: {str(found)[:200]}")


def _births(found: Any) -> Births:
    try:
        births = {(topic, broker): birth for topic, brokers in found.items() for broker, birth in brokers.items()}
        if all(type(birth) is int for birth in births.values()):
            return births
    except AttributeError:
        pass
    raise UsageError(f"these are not births of the shape topic -> broker -> ms: {str(found)[:200]}")


def _nested(offsets: Offsets) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        found.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return found


def begun(begins: Offsets) -> Position:
    """Return the first position of a stream: every queue enters, and nothing of it is read yet."""
    return Position(dict(begins), dict(begins))


def made_anew(at: Births, now: Births) -> set[tuple[str, str]]:
    """Return topics and brokers whose topic is another one now, under the old name."""
    return {place for place, birth in at.items() if now.get(place, birth) != birth}


def losses(at: Offsets, bounds: Bounds) -> list[Loss]:
    """Return, by queue, what was not read yet and is gone."""
    return [
        Loss(queue, offset, *bounds[queue])
        for queue, offset in sorted(at.items())
        if queue in bounds and not bounds[queue][0] <= offset <= bounds[queue][1]
    ]


def entering(at: Offsets, bounds: Bounds) -> Offsets:
    """Return where new queues begin, and those whose place is gone: at their oldest message."""
    lost = {loss.queue for loss in losses(at, bounds)}
    return {queue: low for queue, (low, _) in bounds.items() if queue not in at or queue in lost}


def advanced(at: Offsets, bounds: Bounds, limit: int | None) -> Position:
    """Return the position after the next batch, of at most ``limit`` messages (None: all that is there).

    The limit is shared in proportion to what each queue has waiting. A queue that vanished keeps its place. Where the place of a
    queue is gone it enters again at its oldest message: call `losses` first when that must not be.
    """
    entered = entering(at, bounds)
    begins = {**at, **entered}
    backlog = {queue: bounds[queue][1] - begin for queue, begin in begins.items() if queue in bounds and bounds[queue][1] > begin}
    taken = share(backlog, limit) if limit is not None else backlog
    return Position({queue: begin + taken.get(queue, 0) for queue, begin in begins.items()}, entered)


def waiting(at: Offsets, bounds: Bounds) -> int:
    """Return how many messages wait behind a position."""
    begins = {**at, **entering(at, bounds)}
    return sum(bounds[queue][1] - begin for queue, begin in begins.items() if queue in bounds)


def share(backlog: Mapping[MessageQueue, int], limit: int) -> Offsets:
    """Return how many messages of each queue to take, ``limit`` in all, in proportion to the backlog.

    What is left by rounding down goes to the queues with the largest backlog, one each.
    """
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    found = {queue: count * limit // total for queue, count in backlog.items()}
    left = limit - sum(found.values())
    for queue in sorted(backlog, key=lambda queue: (-backlog[queue], queue))[:left]:
        found[queue] += 1
    return found


def ranges(start: Position | None, end: Position) -> list[Range]:
    """Return what lies between two positions, by queue; None: the stream's start.

    Raises:
        UsageError: a queue's end lies before its beginning, or it has none; such a checkpoint was damaged or made by hand.
    """
    before = start.ends if start else {}
    found = []
    for queue, upper in sorted(end.ends.items()):
        lower = end.entered.get(queue, before.get(queue))
        if lower is None or lower > upper:
            raise UsageError(f"the checkpoint's offsets of {queue} do not fit together: from {lower} to {upper}")
        if lower < upper:
            found.append(Range(queue.topic, queue.broker_name, queue.queue_id, lower, upper))
    return found
