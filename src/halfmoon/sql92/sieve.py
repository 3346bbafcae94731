"""From a tree to what `halfmoon.hot.Sieve` takes: conditions whose truth is plain in the usual message. Evaluates nothing.

A sieve tells what surely matches and what surely does not, and of the rest that it is not sure:
`halfmoon.sql92.predicates` tells that.
"""

from __future__ import annotations

from halfmoon.columns.filtering import Program
from halfmoon.hot import Sieve
from halfmoon.sql92.tree import NUMBERS, Bare, Constant, Equal, In, IsNull, Logic, Name, Negate, Node, Not, Order, Search

UNSURE: Program = ("unsure",)
EACH = Sieve(None, UNSURE)
"""Is sure of no message, and so gives out the properties of each."""
_TURNED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


def program(node: Node) -> Program:
    """Return a condition as tuples, the first of each naming its kind; `UNSURE` in the place of what a sieve cannot tell."""
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
