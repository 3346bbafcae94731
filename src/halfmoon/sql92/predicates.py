"""The meaning of an expression: from its tree to a function that tests the properties of one message.

A function takes a message's properties and returns True, False or None for null. Where a value cannot be read as a comparison wants
it, it raises Unfit, and the message does not match, whatever the rest of the expression says.

Follows ComparisonExpression, LogicExpression, UnaryExpression (RocketMQ 4.9.7 and 5.3.3), the order of evaluation included, since
it decides whether a value that does not fit is looked at.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from halfmoon.sql92.numbers import Unfit, double_of, double_order, int_of, long_of
from halfmoon.sql92.tree import NUMBERS, Bare, Constant, Equal, In, IsNull, Logic, Name, Negate, Node, Not, Order, Search

Properties = Mapping[bytes, bytes]
"""Properties of a message by name, valid UTF-8 and none of them empty."""
Test = Callable[[Properties], bool | None]

_SIGNS: dict[str, Callable[[int, int], bool]] = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
SEARCHES: dict[str, Callable[[bytes, bytes], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": bytes.startswith,
    "ENDSWITH": bytes.endswith,
}
"""Tests of a value and a text by the words of `halfmoon.sql92.tokens.SEARCHES`. The compiled twin leaves words that it does not
know to them."""

_READERS: dict[str, Callable[[bytes], Any]] = {"int": int_of, "long": long_of}


def _finite_or_above(text: bytes) -> float:
    """Read a property that is compared with a number of an expression, which is finite: NaN is above it, as infinity is."""
    value = double_of(text)
    return value if value == value else math.inf


_READERS["double"] = _finite_or_above


class _Operand(NamedTuple):
    kind: str  # as of Constant; "text" for a property, "bool" for a condition
    read: Callable[[Properties], Any]
    constant: Any = None  # the value, where it is known


def predicate(node: Node) -> Test:
    """Return the test of a condition: it gives True, False or None, or raises Unfit."""
    if isinstance(node, Logic):
        parts = [predicate(part) for part in node.parts]
        return _any(parts) if node.word == "OR" else _all(parts)
    if isinstance(node, Not):
        return _not(predicate(node.of))
    if isinstance(node, Bare):
        lookup = _lookup(node.name)
        return lambda m: None if lookup(m) is None else False
    if isinstance(node, IsNull):
        read = _operand(node.of).read
        return lambda m: read(m) is None
    if isinstance(node, In):
        return _in(node, _lookup(node.name))
    if isinstance(node, Search):
        return _search(node, _operand(node.of))
    if isinstance(node, Equal):
        return _equal(_operand(node.left), _operand(node.right))
    if isinstance(node, Order):
        return _order(node.sign, _operand(node.left), _operand(node.right))
    return _operand(node).read


def _any(parts: list[Test]) -> Test:
    def test(m: Properties) -> bool | None:
        outcome: bool | None = False
        for part in parts:
            value = part(m)
            if value:
                return True
            if value is None:
                outcome = None
        return outcome

    return test


def _all(parts: list[Test]) -> Test:
    def test(m: Properties) -> bool | None:
        outcome: bool | None = True
        for part in parts:
            value = part(m)
            if value is False:
                return False
            if value is None:
                outcome = None
        return outcome

    return test


def _not(of: Test) -> Test:
    def test(m: Properties) -> bool | None:
        value = of(m)
        return None if value is None else not value

    return test


def _in(node: In, lookup: Callable[[Properties], bytes | None]) -> Test:
    texts, negated = node.texts, node.negated

    def test(m: Properties) -> bool | None:
        value = lookup(m)
        return None if value is None else (value in texts) is not negated

    return test


def _search(node: Search, of: _Operand) -> Test:
    text, negated, read = node.text, node.negated, of.read
    if not text:
        return lambda m: False
    if of.kind != "text":
        return lambda m: (read(m), False)[1]  # read all the same: it may be unfit
    finds = SEARCHES[node.word]

    def test(m: Properties) -> bool:
        value = read(m)
        return value is not None and finds(value, text) is not negated

    return test


def _order(sign: str, left: _Operand, right: _Operand) -> Test:
    holds = _SIGNS[sign]
    compare = _doubles if left.kind == right.kind == "text" else _comparison(left.kind, right.kind)

    def test(m: Properties) -> bool | None:
        first = left.read(m)
        if first is None:
            return None
        second = right.read(m)
        return None if second is None else holds(compare(first, second), 0)

    return test


def _equal(left: _Operand, right: _Operand) -> Test:
    first, second, compare = left.read, right.read, _comparison(left.kind, right.kind)

    def test(m: Properties) -> bool | None:
        value, other = first(m), second(m)
        if value is None:
            return True if other is None else None
        return other is not None and compare(value, other) == 0

    return test


def _operand(node: Node) -> _Operand:
    if isinstance(node, Name):
        return _Operand("text", _lookup(node))
    if isinstance(node, Constant):
        return _constant(node.kind, node.value)
    if not isinstance(node, Negate):
        return _Operand("bool", predicate(node))
    of = _operand(node.of)
    if of.kind in NUMBERS:
        return _constant(of.kind, -of.constant)
    return _Operand("null", lambda m: (of.read(m), None)[1])  # read all the same: it may be unfit


def _lookup(name: Name) -> Callable[[Properties], bytes | None]:
    key = name.name.encode()
    return lambda m: m.get(key)


def _constant(kind: str, value: Any) -> _Operand:
    return _Operand(kind, lambda m: value, value)


# ---------------------------------------------------------------- comparisons


def _comparison(left: str, right: str) -> Callable[[Any, Any], int]:
    """Return how two values of these kinds compare: below 0, 0 or above. It raises Unfit.

    Of different kinds the text is read as the other is; what cannot be compared counts as below.
    """
    if left == right:
        return _texts if left == "text" else double_order if left == "double" else _numbers
    if left in NUMBERS and right in NUMBERS:
        return _as_doubles if "double" in (left, right) else _numbers
    if left == "text" and right in NUMBERS:
        reader = _READERS[right]
        return lambda left_value, right_value: _numbers(reader(left_value), right_value)
    if left in NUMBERS and right == "text":
        reader = _READERS[left]
        return lambda left_value, right_value: _numbers(left_value, reader(right_value))
    if left == "text" and right == "bool":
        return lambda left_value, right_value: _numbers(left_value.lower() == b"true", right_value)
    return _truth_and_text if (left, right) == ("bool", "text") else lambda left_value, right_value: -1


def _texts(left: bytes, right: bytes) -> int:
    return 0 if left == right else 1


def _numbers(left: Any, right: Any) -> int:
    return -1 if left < right else int(left != right)


def _as_doubles(left: float, right: float) -> int:
    return double_order(float(left), float(right))


def _doubles(left: bytes, right: bytes) -> int:
    return double_order(double_of(left), double_of(right))


def _truth_and_text(_one: bool, other: bytes) -> int:
    raise Unfit(other, "a truth value, which stands on the right of a comparison with a property")
