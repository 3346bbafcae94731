"""Limits that a filter of Arrow puts on what has to be read: queues, offsets, times of storage, tags. Pure.

Limits are necessary conditions: a row that the filter takes lies within them. So what lies outside need not be read, and the filter
decides about the rest. A filter, or a part of one, that is not understood limits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

LOWEST, HIGHEST = -(2**63), 2**63 - 1

NODES_MAX = 10_000
"""Calls, fields and values of a filter that is looked at. Some libraries write long lists as one comparison each."""

DEPTH_MAX = 200

UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}

FLIPPED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal", "equal": "equal"}


class Interval(NamedTuple):
    """Whole numbers from ``low`` to ``high``, both included; none where ``low`` is greater."""

    low: int = LOWEST
    high: int = HIGHEST

    def both(self, other: Interval) -> Interval:
        """Return the numbers that are in both."""
        return Interval(max(self.low, other.low), min(self.high, other.high))

    def either(self, other: Interval) -> Interval:
        """Return the smallest interval with the numbers of both."""
        if self.low > self.high or other.low > other.high:
            return other if self.low > self.high else self
        return Interval(min(self.low, other.low), max(self.high, other.high))


@dataclass(frozen=True)
class Limits:
    """Rows that a filter can take: queue ids, queue offsets, times of storage in µs since the epoch, and tags (None: any)."""

    queues: Interval = Interval()
    offsets: Interval = Interval()
    stored_us: Interval = Interval()
    tags: frozenset[str] | None = None

    def both(self, other: Limits) -> Limits:
        """Return the limits of rows within both."""
        tags = other.tags if self.tags is None else self.tags if other.tags is None else self.tags & other.tags
        queues, offsets = self.queues.both(other.queues), self.offsets.both(other.offsets)
        return Limits(queues, offsets, self.stored_us.both(other.stored_us), tags)

    def either(self, other: Limits) -> Limits:
        """Return limits that hold for the rows within one of the two."""
        tags = None if self.tags is None or other.tags is None else self.tags | other.tags
        queues, offsets = self.queues.either(other.queues), self.offsets.either(other.offsets)
        return Limits(queues, offsets, self.stored_us.either(other.stored_us), tags)

    @property
    def nothing(self) -> bool:
        """Return whether no row can be within these limits."""
        spans = (self.queues, self.offsets, self.stored_us)
        return any(span.low > span.high for span in spans) or self.tags == frozenset()


_EMPTY = Interval(1, 0)
NOTHING = Limits(_EMPTY, _EMPTY, _EMPTY, frozenset())


class _Call(NamedTuple):
    """Call of a function of Arrow. A field is ``("field", name)``, a value a `pyarrow.Scalar`."""

    function: str
    arguments: list[Any]
    options: Any = None


class _NotUnderstood(Exception):
    """Error: the text of a filter has another shape than the one known here."""


def limits_of(expression: pc.Expression | None) -> Limits:
    """Return the limits of a filter; None: no filter. Never raises because of one."""
    if expression is None:
        return Limits()
    try:
        return _limits(_tree(expression))
    except (_NotUnderstood, pa.ArrowException, LookupError, ValueError, TypeError, AttributeError):
        return Limits()  # another version of Arrow may write expressions in another way


def fields_in(expression: pc.Expression | None, names: list[str]) -> list[str]:
    """Return the columns that an expression may use, of ``names`` and in their order; all of them where that is unclear."""
    if expression is None:
        return []
    try:
        used = {value for key, value in _parts(expression)[0] if key == "field_ref"}
    except (_NotUnderstood, pa.ArrowException, LookupError, ValueError, TypeError, AttributeError):
        return names
    return [name for name in names if name in used] if used <= set(names) else names


# ---------------------------------------------------------------- the tree of an expression


def _parts(expression: pc.Expression) -> tuple[list[tuple[str, str]], pa.RecordBatch]:
    """Return the parts of an expression in order, as (kind, text), and its values.

    Arrow writes an expression as a file with one column a value, and its parts as pairs of the schema's metadata:
    ``call F``, arguments, ``options N``, ``end F``, where an argument is ``field_ref NAME``, ``literal N`` or a call.
    """
    _, (buffer, *_rest) = expression.__reduce__()[:2]
    with pa.ipc.open_file(buffer) as file:
        batch = file.get_batch(0)
        text = file.schema.to_string(truncate_metadata=False, show_field_metadata=False)  # `metadata` keeps one of equal keys
    lines = text.partition("-- schema metadata --\n")[2].splitlines()
    pairs = [line.partition(": ") for line in lines]
    if len(pairs) > NODES_MAX or not all(value[:1] == value[-1:] == "'" and len(value) > 1 for _, _, value in pairs):
        raise _NotUnderstood
    return [(key, value[1:-1]) for key, _, value in pairs], batch


def _tree(expression: pc.Expression) -> Any:
    parts, batch = _parts(expression)
    rest = iter(parts)
    tree = _node(rest, *next(rest), batch, 0)
    if next(rest, None) is not None:
        raise _NotUnderstood
    return tree


def _node(rest: Iterator[tuple[str, str]], kind: str, text: str, batch: pa.RecordBatch, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise _NotUnderstood
    if kind == "field_ref":
        return ("field", text)
    if kind == "literal":
        return batch.column(int(text))[0]
    if kind != "call":
        raise _NotUnderstood
    arguments: list[Any] = []
    options = None
    for inner, value in rest:
        if inner == "end":
            return _Call(text, arguments, options)
        if inner == "options":
            options = batch.column(int(value))[0]
        else:
            arguments.append(_node(rest, inner, value, batch, depth + 1))
    raise _NotUnderstood


# ---------------------------------------------------------------- the limits of a tree


def _limits(node: Any) -> Limits:
    """Return the limits of the rows for which a condition is true; null is not true."""
    if isinstance(node, pa.Scalar):
        return Limits() if node.as_py() is True else NOTHING
    if not isinstance(node, _Call):
        return Limits()
    function, arguments = node.function, node.arguments
    if function in ("and", "and_kleene"):
        return _limits(arguments[0]).both(_limits(arguments[1]))
    if function in ("or", "or_kleene"):
        return _limits(arguments[0]).either(_limits(arguments[1]))
    if function == "if_else":  # DuckDB writes IN so: if_else(is_valid(x), is_in(x, …), null)
        condition, then, other = arguments
        return _limits(condition).both(_limits(then)).either(_limits(other))
    if function == "is_in":
        return _is_in(arguments[0], node.options["value_set"])
    if function in FLIPPED:
        left, right = arguments
        if isinstance(right, pa.Scalar):
            return _compared(left, function, right)
        if isinstance(left, pa.Scalar):
            return _compared(right, FLIPPED[function], left)
    return Limits()


def _is_in(field: Any, values: Any) -> Limits:
    found = NOTHING
    for value in values:
        found = found.either(Limits() if not value.is_valid else _compared(field, "equal", value))  # null may be asked for
    return found


def _compared(field: Any, function: str, value: pa.Scalar) -> Limits:
    make = _LIMITED.get(field[1]) if isinstance(field, tuple) and field[0] == "field" else None
    if not value.is_valid:
        return NOTHING  # a comparison with null is null
    return make(function, value) if make is not None else Limits()


def _interval(function: str, value: int) -> Interval:
    if function == "equal":
        return Interval(value, value)
    if function in ("less", "less_equal"):
        return Interval(high=value - (function == "less"))
    return Interval(low=value + (function == "greater"))


def _whole(value: pa.Scalar) -> int | None:
    return value.as_py() if pa.types.is_integer(value.type) else None


def _queues(function: str, value: pa.Scalar) -> Limits:
    number = _whole(value)
    return Limits() if number is None else Limits(queues=_interval(function, number))


def _offsets(function: str, value: pa.Scalar) -> Limits:
    number = _whole(value)
    return Limits() if number is None else Limits(offsets=_interval(function, number))


def _times(function: str, value: pa.Scalar) -> Limits:
    if not pa.types.is_timestamp(value.type) or value.type.unit not in UNIT_US or value.type.tz is None:
        return Limits()
    return Limits(stored_us=_interval(function, value.value * UNIT_US[value.type.unit]))


def _tags(function: str, value: pa.Scalar) -> Limits:
    texts = pa.types.is_string(value.type) or pa.types.is_large_string(value.type) or pa.types.is_string_view(value.type)
    return Limits(tags=frozenset({value.as_py()})) if function == "equal" and texts else Limits()


_LIMITED: dict[str, Callable[[str, pa.Scalar], Limits]] = {
    "queueId": _queues,
    "queueOffset": _offsets,
    "storeTimestamp": _times,
    "tags": _tags,
}
