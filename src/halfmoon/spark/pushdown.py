"""What filters of a query say about ranges and rows: less is read, and Spark still evaluates every filter itself.

So a filter that is not understood costs nothing but the reading, and one that is may be taken loosely, never strictly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from halfmoon.spark.plan import Range

TIME_SLACK_MS = 60_000
"""A broker's clock may have stepped back that far between two messages; ranges by time are wider by it on both sides."""

OFFSET_MAX = 2**63 - 1


@dataclass
class Pushed:
    """What a message must be like to pass. Offsets of [begin, end), times in ms of [since, until)."""

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    queues: frozenset[int] | None = None
    begin: int = 0
    end: int = OFFSET_MAX
    since: int | None = None
    until: int | None = None
    texts: dict[str, frozenset[str]] = field(default_factory=dict)
    """Values of ``tags``, ``keys`` and ``msgId`` of which a message must have one; looked at while reading."""

    def cut(self, part: Range) -> Range | None:
        """Return what of a range may pass, None: nothing."""
        if self.topics is not None and part.topic not in self.topics:
            return None
        if self.brokers is not None and part.broker not in self.brokers:
            return None
        if self.queues is not None and part.queue not in self.queues:
            return None
        begin, end = max(part.begin, self.begin), min(part.end, self.end)
        return Range(part.topic, part.broker, part.queue, begin, end) if begin < end else None


def pushed(filters: list[Filter]) -> Pushed:
    """Return what filters, all of which must hold, say together."""
    found = Pushed()
    for each in filters:
        _take(found, each)
    return found


def _take(found: Pushed, each: Filter) -> None:
    if isinstance(each, (EqualTo, EqualNullSafe)):
        values: tuple[Any, ...] = (each.value,)
    elif isinstance(each, In):
        values = each.value
    elif isinstance(each, (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)):
        _order(found, each)
        return
    else:
        return
    name = each.attribute[0] if len(each.attribute) == 1 else ""
    if name in ("topic", "brokerName", "tags", "keys", "msgId") and all(isinstance(value, str) for value in values):
        _texts(found, name, frozenset(values))
    elif name in ("queueId", "queueOffset") and all(type(value) is int for value in values):
        _numbers(found, name, frozenset(values))
    elif name == "storeTimestamp" and values and all(_ms(value) is not None for value in values):
        times = [_ms(value) or 0 for value in values]
        _between(found, min(times), max(times))


def _texts(found: Pushed, name: str, values: frozenset[str]) -> None:
    if name == "topic":
        found.topics = values if found.topics is None else found.topics & values
    elif name == "brokerName":
        found.brokers = values if found.brokers is None else found.brokers & values
    else:
        found.texts[name] = found.texts.get(name, values) & values


def _numbers(found: Pushed, name: str, values: frozenset[int]) -> None:
    if name == "queueId":
        found.queues = values if found.queues is None else found.queues & values
    elif values:
        found.begin, found.end = max(found.begin, min(values)), min(found.end, max(values) + 1)


def _order(found: Pushed, each: GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual) -> None:
    lower = isinstance(each, (GreaterThan, GreaterThanOrEqual))
    if each.attribute == ("queueOffset",) and type(each.value) is int:
        beyond = 1 if isinstance(each, (GreaterThan, LessThanOrEqual)) else 0
        if lower:
            found.begin = max(found.begin, each.value + beyond)
        else:
            found.end = min(found.end, each.value + beyond)
    elif each.attribute == ("storeTimestamp",) and (ms := _ms(each.value)) is not None:
        _between(found, ms if lower else None, None if lower else ms)


def _between(found: Pushed, low: int | None, high: int | None) -> None:
    if low is not None:
        found.since = max(found.since if found.since is not None else 0, low - TIME_SLACK_MS)
    if high is not None:
        until = high + 1 + TIME_SLACK_MS
        found.until = until if found.until is None else min(found.until, until)


def _ms(value: Any) -> int | None:
    """Return a point in time in ms; None when it has no time zone, or is none."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return int(value.timestamp() * 1000)
