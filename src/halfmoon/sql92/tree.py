"""The tree of a filter expression: plain values, what they say in words, and what testing them costs. Evaluates nothing.

BETWEEN, ``<>`` and IS NOT NULL are written with the other nodes, as the original does; brackets and ``+`` leave no trace.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class Constant(msgspec.Struct, frozen=True):
    """A value that the expression names. ``kind``: ``null``, ``bool``, ``int`` (fits 32 bits), ``long``, ``double`` or ``text``."""

    kind: str
    value: bool | int | float | bytes | None


class Name(msgspec.Struct, frozen=True):
    """A property's value: a text, or null when the message has none."""

    name: str


class Negate(msgspec.Struct, frozen=True):
    """Minus. Of anything but a number it is null, of a property too."""

    of: Node


class Not(msgspec.Struct, frozen=True):
    """The contrary; null stays null."""

    of: Node


class Logic(msgspec.Struct, frozen=True):
    """``word`` is AND or OR, over two or more conditions from left to right."""

    word: str
    parts: tuple[Node, ...]


class Equal(msgspec.Struct, frozen=True):
    """``=``. Two nulls are equal; a null on the left alone gives null, one on the right alone false."""

    left: Node
    right: Node


class Order(msgspec.Struct, frozen=True):
    """``>``, ``>=``, ``<`` or ``<=`` by number. Null on either side gives null."""

    sign: str
    left: Node
    right: Node


class IsNull(msgspec.Struct, frozen=True):
    """IS NULL: true or false, never null."""

    of: Node


class In(msgspec.Struct, frozen=True):
    """IN or NOT IN over texts. A missing property gives null for both."""

    name: Name
    texts: frozenset[bytes]
    negated: bool = False


class Search(msgspec.Struct, frozen=True):
    """CONTAINS, STARTSWITH or ENDSWITH (``word``). What is missing or no text gives false, with NOT too."""

    word: str
    of: Node
    text: bytes
    negated: bool = False


class Bare(msgspec.Struct, frozen=True):
    """A property as a condition: false when the message has it, whatever its text, and null when not."""

    name: Name


Node = Constant | Name | Negate | Not | Logic | Equal | Order | IsNull | In | Search | Bare
CONDITIONS = (Not, Logic, Equal, Order, IsNull, In, Search, Bare)
NUMBERS = frozenset({"int", "long", "double"})


def is_condition(node: Node) -> bool:
    """Whether a node is a condition: true, false or null. TRUE, FALSE and NULL are."""
    return isinstance(node, CONDITIONS) or (isinstance(node, Constant) and node.kind in ("bool", "null"))


def inner(node: Node) -> tuple[Node, ...]:
    """Return the nodes right below a node."""
    if isinstance(node, Equal | Order):
        return (node.left, node.right)
    if isinstance(node, Negate | Not | IsNull | Search):
        return (node.of,)
    if isinstance(node, In | Bare):
        return (node.name,)
    return node.parts if isinstance(node, Logic) else ()


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all below it, each before what is below it, from left to right."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += inner(node)[::-1]


def steps(node: Node) -> int:
    """Return what one test costs at most, in steps of 0.1 to 0.2 microseconds (CPython 3.11) where properties are short.

    A look-up takes three, reading a number two, a floating-point number or a search in a text four, everything else one.
    """
    return sum(_own_steps(below) for below in walk(node))


def _own_steps(node: Node) -> int:
    if isinstance(node, Constant):
        return {"int": 2, "long": 2, "double": 4}.get(node.kind, 0)
    if isinstance(node, Name):
        return 3
    if isinstance(node, Order) and isinstance(node.left, Name) and isinstance(node.right, Name):
        return 9
    return 4 if isinstance(node, Search) else 1


def scans(node: Node) -> int:
    """Return how often one test may read a value from one end to the other: searches in it, and readings as floating-point numbers.

    A long value of 32 KiB takes up to 130 microseconds each time.
    """
    return sum(_own_scans(below) for below in walk(node))


def _own_scans(node: Node) -> int:
    if isinstance(node, Order) and isinstance(node.left, Name) and isinstance(node.right, Name):
        return 2
    return int(isinstance(node, Search) or (isinstance(node, Constant) and node.kind == "double"))


def text_of(constant: Constant) -> str:
    """Return a constant as an expression writes it, long texts shortened."""
    value = constant.value
    if isinstance(value, bytes):
        return _quoted(value)
    return "NULL" if value is None else repr(value).upper() if isinstance(value, bool) else repr(value)


def lines(node: Node, depth: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the tree as lines for people: how deep, and what the node says."""
    if isinstance(node, Equal | Order) and not any(is_condition(side) and inner(side) for side in (node.left, node.right)):
        yield depth, f"{_operand(node.left)} {node.sign if isinstance(node, Order) else '='} {_operand(node.right)}{_reading(node)}"
        return
    yield depth, _said(node)
    if not isinstance(node, In | Bare) and not (isinstance(node, IsNull | Search) and isinstance(node.of, Name)):
        for side in inner(node):
            yield from lines(side, depth + 1)


def _said(node: Node) -> str:
    if isinstance(node, Logic):
        return node.word
    if isinstance(node, In):
        shown = ", ".join(_quoted(text) for text in sorted(node.texts)[:8])
        more = f", … {len(node.texts):,} texts" if len(node.texts) > 8 else ""
        return f"{node.name.name} {'NOT ' if node.negated else ''}IN ({shown}{more})"
    if isinstance(node, Search):
        subject = f"{node.of.name} " if isinstance(node.of, Name) else ""
        return f"{subject}{'NOT ' if node.negated else ''}{node.word} {_quoted(node.text)}"
    if isinstance(node, IsNull):
        return f"{node.of.name} IS NULL" if isinstance(node.of, Name) else "IS NULL"
    if isinstance(node, Bare):
        return f"{node.name.name}   (a bare property is never true)"
    if isinstance(node, Constant | Name):
        return _operand(node)
    return node.sign if isinstance(node, Order) else "NOT" if isinstance(node, Not) else "-" if isinstance(node, Negate) else "="


def _operand(node: Node) -> str:
    if isinstance(node, Negate):
        return f"-{_operand(node.of)}"
    return node.name if isinstance(node, Name) else text_of(node) if isinstance(node, Constant) else "(…)"


_WORDS = {"int": "a whole number of 32 bits", "long": "a whole number of 64 bits", "double": "a floating-point number"}


def _reading(node: Equal | Order) -> str:
    """How a property is read in a comparison."""
    names = [side for side in (node.left, node.right) if isinstance(side, Name)]
    if not names:
        return ""
    others = [side.of if isinstance(side, Negate) else side for side in (node.left, node.right) if side not in names]
    kind = others[0].kind if others and isinstance(others[0], Constant) else ""
    if kind in _WORDS:
        return f"   ({names[0].name} read as {_WORDS[kind]})"
    if len(names) == 2 and isinstance(node, Order):
        return "   (both read as floating-point numbers)"
    return f"   ({names[0].name} read as true or false)" if kind == "bool" else ""


def _quoted(text: bytes) -> str:
    shown = text.decode("utf-8", "replace")
    shown = shown if len(shown) <= 60 else shown[:59] + "…"
    return "'" + shown.replace("'", "''") + "'"
