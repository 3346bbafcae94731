"""A filter: an expression made ready to test messages, one or many, and to say why. Keeps nothing of the messages.

A message is given as its properties in bytes, as they travel and are stored: ``name 0x01 value 0x02 …`` in UTF-8.

Follows SqlFilter and ExpressionMessageFilter.isMatchedByCommitLog (RocketMQ 4.9.7): what is true matches; what is false or null, or
cannot be evaluated, does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from halfmoon.hot import BulkFilter
from halfmoon.sql92.numbers import Unfit
from halfmoon.sql92.parser import parse
from halfmoon.sql92.predicates import Properties, predicate
from halfmoon.sql92.tree import Bare, Constant, Equal, IsNull, Name, Node, Order, Search, inner, lines, scans, steps, walk

_CONSTANTS_SHOWN = 8


class FilterVerdict(Enum):
    """Result of an expression for one message. Only TRUE is a match."""

    TRUE = "true"
    FALSE = "false"
    NULL = "null"
    UNFIT = "unfit"


class FilterOutcome(NamedTuple):
    """A verdict, and for UNFIT the reason."""

    verdict: FilterVerdict
    reason: str = ""


class Filter:
    """An expression, ready. May be used from several threads.

    Attributes:
        expression: as it was given.
        tree: what it says, see `halfmoon.sql92.tree`.
        names: the properties that it looks at, in alphabetical order.
        steps: what one test costs at most, in steps of 0.1 to 0.2 microseconds where properties are short.
        scans: how often one test reads a value from end to end, at most. It costs a step for each 30 to 100 bytes of the value.
    """

    __slots__ = ("_bulk_filter", "_predicate", "expression", "names", "scans", "steps", "tree")

    def __init__(self, expression: str, tree: Node) -> None:
        self.expression, self.tree = expression, tree
        self.names = tuple(sorted({node.name for node in walk(tree) if isinstance(node, Name)}))
        self.steps, self.scans = steps(tree), scans(tree)
        self._predicate = predicate(tree)
        self._bulk_filter = BulkFilter(tree)

    def constants(self) -> list[str]:
        """Return a sentence on each of the first conditions that say the same of every message; TRUE and FALSE are meant so."""
        found = []
        for node in walk(self.tree):
            if isinstance(node, Bare):
                found.append(f"{node.name.name} alone is never true: compare it, or write {node.name.name} IS NOT NULL")
            elif isinstance(node, Equal | Order | IsNull | Search) and not any(isinstance(each, Name) for each in walk(node)):
                quoted = any(isinstance(side, Constant) and side.kind == "text" for side in inner(node))
                remedy = "; the name of a property has no quotes" if quoted else ""
                verdict = Filter("", node).outcome(b"").verdict.value
                found.append(f"{' '.join(text for _, text in lines(node))} reads no property and is always {verdict}{remedy}")
            if len(found) == _CONSTANTS_SHOWN:
                break
        return found

    def matches(self, properties: bytes) -> bool:
        """Return whether a message with these properties passes. Never raises."""
        try:
            return self._predicate(table(properties)) is True
        except Unfit:
            return False

    def matching(self, blocks: Sequence[bytes]) -> list[int]:
        """Return the indexes of the messages that pass, in order. Never raises.

        The fastest way to test many: the bulk filter decides about most of them.
        """
        sure, unsure = self._bulk_filter.matching(blocks)
        return sorted(sure + [index for index in unsure if self.matches(blocks[index])])

    def records(
        self, area: memoryview, base: int, entries: bytes, steps: int, message: int, weight: int, at_most: int
    ) -> tuple[list[int], int, int]:
        """Return the indexes of the entries whose records pass, in order; how many were looked at; and the steps spent.

        ``message`` and ``weight`` are the cost of a test by the predicate. See `halfmoon.columns.filtering`.
        """
        sure, unsure, blocks, looked, spent = self._bulk_filter.records(area, base, entries, steps, message, weight, at_most)
        return sorted(sure + [index for index, block in zip(unsure, blocks) if self.matches(block)]), looked, spent

    def outcome(self, properties: bytes) -> FilterOutcome:
        """Return what the expression says of a message, and why it cannot be evaluated where it cannot."""
        try:
            value = self._predicate(table(properties))
        except Unfit as unfit:
            text, wanted = unfit.args
            shown = text.decode("utf-8", "replace")
            shown = shown if len(shown) <= 40 else shown[:39] + "…"
            return FilterOutcome(FilterVerdict.UNFIT, f"{shown!r} is not {wanted}")
        return FilterOutcome(FilterVerdict.NULL if value is None else FilterVerdict.TRUE if value else FilterVerdict.FALSE)


def table(block: bytes) -> Properties:
    """Return stored properties by name, as `halfmoon.wire.properties.decode` does: of a name given twice the last, none empty.

    What is no UTF-8 becomes U+FFFD, so that two such values may be the same text.
    """
    if not block.isascii():
        block = block.decode("utf-8", "replace").encode()
    properties = {}
    for pair in block.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name and value:
            properties[name] = value
    return properties


def compile(expression: str) -> Filter:
    """Return the filter that an expression describes.

    Takes a few microseconds a word, under 100 ms for anything. Keep the filter: it is the same for every message.

    Raises:
        ExpressionRefused: it is no filter, or larger than the bounds; the text says where, why and what to write.
    """
    return Filter(expression, parse(expression))
