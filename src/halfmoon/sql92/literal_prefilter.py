"""What the bytes of a matching message must contain, so that most of the others need no test at all. Loses no match.

A search for bytes is several times cheaper than finding a property and comparing it.
"""

from __future__ import annotations

from halfmoon.sql92.tree import Bare, Constant, Equal, In, IsNull, Logic, Name, Node, Not, Order, Search

Literals = tuple[bytes, ...]

LITERALS_MAX = 16
"""Alternatives of one group: with more, the search costs what it saves."""


def literals(node: Node) -> Literals:
    """Return bytes of which each message that matches contains at least one; empty when there are none to name."""
    return _when_true(node) or ()


def _when_true(node: Node) -> Literals | None:
    """The literals of a condition that is true; None: nothing is known."""
    if isinstance(node, Logic):
        return _of_all(node) if node.word == "AND" else _of_any(node)
    if isinstance(node, In):
        return _of_in(node)
    if isinstance(node, Search) and isinstance(node.of, Name):
        return (_mark(node.of) + (node.text if node.word == "STARTSWITH" and not node.negated else b""),)
    if isinstance(node, Order):
        return _present(node.left) or _present(node.right)
    if isinstance(node, Equal):
        return _of_equal(node.left, node.right) or _of_equal(node.right, node.left)
    return _when_false(node.of) if isinstance(node, Not) else None


def _when_false(node: Node) -> Literals | None:
    """The literals of a condition that is false, so that NOT makes it true."""
    if isinstance(node, Equal):
        return _present(node.left)  # a missing property on the right makes it false too
    if isinstance(node, Order):
        return _present(node.left) or _present(node.right)
    if isinstance(node, IsNull):
        return _present(node.of)
    return _present(node.name) if isinstance(node, Bare | In) else None


def _of_all(node: Logic) -> Literals | None:
    """The best group of an AND: the one whose shortest literal is longest, then the one with fewest."""
    groups = [group for part in node.parts if (group := _when_true(part))]
    return max(groups, key=lambda group: (min(map(len, group)), -len(group)), default=None)


def _of_any(node: Logic) -> Literals | None:
    literals: set[bytes] = set()
    for part in node.parts:
        group = _when_true(part)
        if not group or len(literals := literals | set(group)) > LITERALS_MAX:
            return None
    return tuple(sorted(literals))


def _of_in(node: In) -> Literals:
    if node.negated or len(node.texts) > LITERALS_MAX:
        return (_mark(node.name),)
    return tuple(sorted(_mark(node.name) + text for text in node.texts))


def _of_equal(name: Node, other: Node) -> Literals | None:
    """Of ``name = other``, true only where both are present: a constant is never null here."""
    if not isinstance(name, Name) or not isinstance(other, Constant):
        return None
    return (_mark(name) + (other.value if isinstance(other.value, bytes) else b""),)


def _present(node: Node) -> Literals | None:
    return (_mark(node),) if isinstance(node, Name) else None


def _mark(name: Name) -> bytes:
    return name.name.encode() + b"\x01"
