"""From a tree to the program of a `halfmoon.hot.BulkFilter`: conditions that are plain in the usual message. Evaluates nothing.

A bulk filter says which messages surely match, which surely do not, and of which it is unsure: `halfmoon.sql92.predicates`
decides about those.
"""

from __future__ import annotations

from halfmoon.columns.filtering import Program
from halfmoon.hot import BulkFilter
from halfmoon.sql92.tree import NUMBERS, Bare, Constant, Equal, In, IsNull, Logic, Name, Negate, Node, Not, Order, Search

UNSURE: Program = ("unsure",)
ALL_UNSURE = BulkFilter(None, UNSURE)
"""Is sure of no message, and so gives out the properties of each."""
_TURNED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


def program(node: Node) -> Program:
    """Return a condition as tuples, the first of each naming its kind; `UNSURE` for what a bulk filter cannot decide."""
    if isinstance(node, Logic):
        return ("all" if node.word == "AND" else "any", [program(part) for part in node.parts])
    if isinstance(node, Not):
        return ("not", program(node.of))
    if isinstance(node, Bare):
        return ("bare", _mark(node.name))
    if isinstance(node, In):
        return ("in", _mark(node.name), sorted(node.texts), node.negated)
    if isinstance(node, IsNull) and isinstance(node.of, Name):
        return ("null", _mark(node.of))
    if isinstance(node, Search) and isinstance(node.of, Name) and node.text:
        return ("search", _mark(node.of), node.word, node.text, node.negated)
    if isinstance(node, Equal):
        return _compared(node.left, "=", node.right)
    if isinstance(node, Order):
        if isinstance(node.right, Name) and not isinstance(node.left, Name):
            return _compared(node.right, _TURNED[node.sign], node.left)
        return _compared(node.left, node.sign, node.right)
    return UNSURE


def _compared(left: Node, sign: str, right: Node) -> Program:
    """A property against a constant."""
    if not isinstance(left, Name):
        return UNSURE
    minus = isinstance(right, Negate)
    constant = right.of if isinstance(right, Negate) else right
    if not isinstance(constant, Constant):
        return UNSURE
    value = constant.value
    if constant.kind in NUMBERS and isinstance(value, int | float):
        value = -value if minus else value
        whole = isinstance(value, int)
        return UNSURE if whole and not -(2**63) <= value < 2**63 else ("number", _mark(left), sign, value)
    if constant.kind == "text" and sign == "=" and not minus:
        return ("text", _mark(left), value)
    return UNSURE


def _mark(name: Name) -> bytes:
    return name.name.encode() + b"\x01"
