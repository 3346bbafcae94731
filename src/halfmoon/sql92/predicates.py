"""From a tree to functions that test one message. `three_valued` is the whole truth, `is_true` the short way to its one answer.

A function takes what its look-ups take (bytes, or a table) and gives True, False or None for null. Where a value cannot be read as
a comparison wants it, Unfit is raised and the message does not match, whatever the rest of the expression says.

Follows ComparisonExpression, LogicExpression, UnaryExpression (RocketMQ 4.9.7 and 5.3.3), the order of evaluation included, since
it decides whether a value that does not fit is looked at.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from halfmoon.sql92 import single_comparison
from halfmoon.sql92.numbers import Unfit, double_of, double_order, int_of, long_of
from halfmoon.sql92.property_access import Lookup, PropertyAccess, same_text
from halfmoon.sql92.tree import (
    NUMBERS,
    Bare,
    Constant,
    Equal,
    In,
    IsNull,
    Logic,
    Name,
    Negate,
    Node,
    Not,
    Order,
    Search,
    inner,
    steps,
)

Test = Callable[[Any], bool | None]

_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
}
_TURNED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
_READERS: dict[str, Callable[[bytes], Any]] = {"int": int_of, "long": long_of}


def _finite_or_above(text: bytes) -> float:
    """A property to be compared with a number of an expression, which is finite and not 0: NaN is above it, as infinity is."""
    value = double_of(text)
    return value if value == value else math.inf


_READERS["double"] = _finite_or_above


class _Operand(NamedTuple):
    kind: str  # as of Constant; "text" for a property, "bool" for a condition
    read: Callable[[Any], Any]
    constant: Any = None  # the value, where it is known


# ---------------------------------------------------------------- the whole truth


def three_valued(node: Node, access: PropertyAccess) -> Test:
    """Return the test that gives True, False or None; it raises Unfit."""
    if isinstance(node, Logic):
        parts = [three_valued(part, access) for part in node.parts]
        return _any(parts) if node.word == "OR" else _all(parts)
    if isinstance(node, Not):
        return _not(three_valued(node.of, access))
    if isinstance(node, Bare):
        lookup = access.of(node.name.name)
        return lambda m: None if lookup(m) is None else False
    if isinstance(node, IsNull):
        read = _operand(node.of, access).read
        return lambda m: read(m) is None
    if isinstance(node, In):
        return _in(node, access.of(node.name.name))
    if isinstance(node, Search):
        return _search(node, _operand(node.of, access))
    if isinstance(node, Equal):
        return _equal(_operand(node.left, access), _operand(node.right, access))
    if isinstance(node, Order):
        return _order(node.sign, _operand(node.left, access), _operand(node.right, access))
    return _operand(node, access).read


def _any(parts: list[Test]) -> Test:
    def test(m: Any) -> bool | None:
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
    def test(m: Any) -> bool | None:
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
    def test(m: Any) -> bool | None:
        value = of(m)
        return None if value is None else not value

    return test


def _in(node: In, lookup: Lookup) -> Test:
    texts, negated = node.texts, node.negated

    def test(m: Any) -> bool | None:
        value = lookup(m)
        return None if value is None else (value in texts) is not negated

    return test


def _search(node: Search, of: _Operand) -> Test:
    text, negated, read = node.text, node.negated, of.read
    if not text:
        return lambda m: False
    if of.kind != "text":
        return lambda m: (read(m), False)[1]  # read all the same: it may be unfit
    searches: dict[str, Callable[[bytes, bytes], bool]] = {"CONTAINS": operator.contains, "STARTSWITH": bytes.startswith}
    finds = searches.get(node.word, bytes.endswith)

    def test(m: Any) -> bool:
        value = read(m)
        return value is not None and finds(value, text) is not negated

    return test


def _order(sign: str, left: _Operand, right: _Operand) -> Test:
    if left.kind in NUMBERS and right.kind == "text":
        sign, left, right = _TURNED[sign], right, left
    holds = _SIGNS[sign]
    if left.kind == "text" and right.kind in NUMBERS:
        return _against(holds, left, right)
    compare = _doubles if left.kind == right.kind == "text" else _comparison(left.kind, right.kind)

    def test(m: Any) -> bool | None:
        first = left.read(m)
        if first is None:
            return None
        second = right.read(m)
        return None if second is None else holds(compare(first, second), 0)

    return test


def _against(holds: Callable[[Any, Any], bool], left: _Operand, right: _Operand) -> Test:
    """A property on the left, a number of the expression on the right."""
    lookup, reader, constant = left.read, _READERS[right.kind], right.constant

    def test(m: Any) -> bool | None:
        value = lookup(m)
        return None if value is None else holds(reader(value), constant)

    return test


def _equal(left: _Operand, right: _Operand) -> Test:
    if left.kind == "text" and right.kind in NUMBERS and left.constant is None:
        return _against(operator.eq, left, right)
    first, second, compare = left.read, right.read, _comparison(left.kind, right.kind)

    def test(m: Any) -> bool | None:
        value, other = first(m), second(m)
        if value is None:
            return True if other is None else None
        return other is not None and compare(value, other) == 0

    return test


def _operand(node: Node, access: PropertyAccess) -> _Operand:
    if isinstance(node, Name):
        return _Operand("text", access.of(node.name))
    if isinstance(node, Constant):
        return _constant(node.kind, node.value)
    if not isinstance(node, Negate):
        return _Operand("bool", three_valued(node, access))
    of = _operand(node.of, access)
    if of.kind in NUMBERS:
        return _constant(of.kind, -of.constant)
    return _Operand("null", lambda m: (of.read(m), None)[1])  # read all the same: it may be unfit


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
    return 0 if same_text(left, right) else 1


def _numbers(left: Any, right: Any) -> int:
    return -1 if left < right else int(left != right)


def _as_doubles(left: float, right: float) -> int:
    return double_order(float(left), float(right))


def _doubles(left: bytes, right: bytes) -> int:
    return double_order(double_of(left), double_of(right))


def _truth_and_text(_one: bool, other: bytes) -> int:
    raise Unfit(other, "a truth value, which stands on the right of a comparison with a property")


# ---------------------------------------------------------------- the short way


def is_true(node: Node, access: PropertyAccess) -> Callable[[Any], Any]:
    """Return the test that says whether a condition is true. It never raises: null, false and what is unfit are all no match."""
    if isinstance(node, Logic) and node.word == "AND":
        return _all_true([is_true(part, access) for part in cheapest_first(node)])
    if isinstance(node, Logic):
        return _any_true(node, access)
    if access.plain and (quickly := _quick(node, access)):
        return quickly
    return _plainly(node, access)


def _plainly(node: Node, access: PropertyAccess) -> Callable[[Any], bool]:
    test = three_valued(node, access)
    return _caught(test) if may_be_unfit(node) else lambda m: test(m) is True


def _quick(node: Node, access: PropertyAccess) -> Callable[[Any], Any] | None:
    """Return the quick test of a property against something known, None where the node is something else."""
    if isinstance(node, In) and not node.negated:
        return single_comparison.texts(node.name.name, node.texts, access.of(node.name.name))
    if not isinstance(node, Equal | Order):
        return None
    left, right, sign = node.left, _operand(node.right, access), node.sign if isinstance(node, Order) else "="
    if sign != "=" and not isinstance(left, Name):
        left, right, sign = node.right, _operand(node.left, access), _TURNED[sign]
    if not isinstance(left, Name) or right.constant is None:
        return None
    if right.kind == "text":
        return single_comparison.text(left.name, right.constant, access.of(left.name))
    if right.kind not in NUMBERS:
        return None
    return single_comparison.number(left.name, _SIGNS[sign], right.constant, _plainly(node, access))


def cheapest_first(node: Logic) -> list[Node]:
    """Return the parts of an AND in the order that finds out soonest. An AND is true when each part is true and none is unfit,
    so that the order decides nothing."""
    return sorted(node.parts, key=steps)


def may_be_unfit(node: Node) -> bool:
    """Whether a value can be unfit for the node: it reads a property as a number, or compares a truth value with one."""
    if isinstance(node, Equal | Order):
        sides = (node.left, node.right)
        if not (isinstance(node, Equal) and all(isinstance(side, Name) or _is_text(side) for side in sides)):
            return True
    return any(may_be_unfit(side) for side in inner(node))


def _is_text(node: Node) -> bool:
    return isinstance(node, Constant) and node.kind == "text"


def _all_true(parts: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    if len(parts) == 2:
        first, second = parts
        return lambda m: first(m) and second(m)

    def test(m: Any) -> bool:
        for part in parts:  # noqa: SIM110 (a generator would cost more than the tests)
            if not part(m):
                return False
        return True

    return test


def _any_true(node: Logic, access: PropertyAccess) -> Callable[[Any], bool]:
    """An OR is true with its first true part, unless a part before is unfit: only the last may keep that to itself."""
    *before, last = node.parts
    parts = [three_valued(part, access) if may_be_unfit(part) else is_true(part, access) for part in before]
    parts.append(is_true(last, access))

    def test(m: Any) -> bool:
        try:
            for part in parts:
                if part(m):
                    return True
        except Unfit:
            pass
        return False

    return test


def _caught(test: Test) -> Callable[[Any], bool]:
    def caught(m: Any) -> bool:
        try:
            return test(m) is True
        except Unfit:
            return False

    return caught
