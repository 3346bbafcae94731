"""A filter: an expression made ready to test messages, one or many, and to say why. Keeps nothing of the messages.

A message is given as its properties in bytes, as they travel and are stored: ``name 0x01 value 0x02 …`` in UTF-8.

Follows SqlFilter and ExpressionMessageFilter.isMatchedByCommitLog (RocketMQ 4.9.7): what is true matches; what is false or null, or
cannot be evaluated, does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from halfmoon.hot import BulkFilter
from halfmoon.sql92.bulk_filter import UNSURE, program
from halfmoon.sql92.literal_prefilter import literals
from halfmoon.sql92.numbers import Unfit
from halfmoon.sql92.parser import parse
from halfmoon.sql92.predicates import Test, is_true, three_valued
from halfmoon.sql92.property_access import TABLE_FROM, PropertyAccess, table
from halfmoon.sql92.tree import Bare, Constant, Equal, IsNull, Name, Node, Order, Search, inner, lines, scans, steps, walk

_REPLACEMENT = "\ufffd"
_SMALL_STEPS = 8
_CONSTANTS_SHOWN = 8


class Verdict(Enum):
    """What an expression says of one message. Only TRUE is a match."""

    TRUE = "true"
    FALSE = "false"
    NULL = "null"
    UNFIT = "unfit"


class Outcome(NamedTuple):
    """A verdict, and for UNFIT the reason."""

    verdict: Verdict
    reason: str = ""


class Filter:
    """An expression, ready. May be used from several threads.

    Attributes:
        expression: as it was given.
        tree: what it says, see `halfmoon.sql92.tree`.
        names: the properties that it looks at, in alphabetical order.
        steps: what one test costs at most, in steps of 0.1 to 0.2 microseconds where properties are short.
        scans: how often one test reads a value from end to end, at most. It costs a step for each 30 to 100 bytes of the value.
        in_a_table: whether a test first reads all properties into a table, since it looks up many.
        literals: each message that matches contains at least one of these bytes in its properties, so in its record; empty: nothing
            is known. Whoever reads many records may look for them first.
    """

    __slots__ = (
        "_access",
        "_bulk_filter",
        "_literal",
        "_prepare",
        "_test",
        "_value",
        "expression",
        "in_a_table",
        "literals",
        "names",
        "scans",
        "steps",
        "tree",
    )  # fmt: skip

    def __init__(self, expression: str, tree: Node, *, in_a_table: bool | None = None) -> None:
        looked_at = [node.name for node in walk(tree) if isinstance(node, Name)]
        self.expression, self.tree = expression, tree
        self.names, self.steps = tuple(sorted(set(looked_at))), steps(tree)
        self.scans = scans(tree)
        self.literals = () if _REPLACEMENT in expression else literals(tree)
        self._literal = self.literals[0] if len(self.literals) == 1 and self._pays(self.literals[0]) else None
        if in_a_table is None:
            in_a_table = len(looked_at) >= TABLE_FROM
        self.in_a_table = in_a_table
        self._prepare: Callable[[bytes], Any] | None = table if in_a_table else None
        self._access = PropertyAccess(in_a_table=in_a_table, mend=_REPLACEMENT in expression)
        self._test = is_true(tree, self._access)
        self._bulk_filter = BulkFilter(self._literal, UNSURE if _REPLACEMENT in expression else program(tree))
        self._value: Test | None = None  # made for the first who asks why

    def _pays(self, literal: bytes) -> bool:
        """Whether looking for the literal first saves time: one that says only that a property is there saves a small test none."""
        return not literal.endswith(b"\x01") or self.steps > _SMALL_STEPS

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
        if self._literal is not None and properties.find(self._literal) < 0:
            return False
        return bool(self._test(self._prepare(properties) if self._prepare else properties))

    def matching(self, blocks: Sequence[bytes]) -> list[int]:
        """Return the indexes of the messages that pass, in order. Never raises, and takes at most ``len(blocks) * steps`` steps.

        The fastest way to test many: the bulk filter decides about most of them.
        """
        sure, unsure = self._bulk_filter.matching(blocks)
        if not unsure:
            return sure
        test, prepare = self._test, self._prepare
        passed = [at for at in unsure if test(prepare(blocks[at]) if prepare else blocks[at])]
        return sorted(sure + passed) if sure else passed

    def records(
        self, area: memoryview, base: int, entries: bytes, steps: int, message: int, weight: int, at_most: int
    ) -> tuple[list[int], int, int]:
        """Return the indexes of the entries whose records pass, in order; how many were looked at; and the steps spent.

        ``message`` and ``weight`` are what a test by the predicates costs. See `halfmoon.columns.filtering`.
        """
        sure, unsure, blocks, looked, spent = self._bulk_filter.records(area, base, entries, steps, message, weight, at_most)
        if not unsure:
            return sure, looked, spent
        test, prepare = self._test, self._prepare
        passed = [at for at, block in zip(unsure, blocks) if test(prepare(block) if prepare else block)]
        return sorted(sure + passed) if sure else passed, looked, spent

    def outcome(self, properties: bytes) -> Outcome:
        """Return what the expression says of a message, and why it cannot be evaluated where it cannot."""
        if self._value is None:
            self._value = three_valued(self.tree, self._access)
        try:
            value = self._value(self._prepare(properties) if self._prepare else properties)
        except Unfit as unfit:
            value, wanted = unfit.args
            shown = value.decode("utf-8", "replace")
            shown = shown if len(shown) <= 40 else shown[:39] + "…"
            return Outcome(Verdict.UNFIT, f"{shown!r} is not {wanted}")
        return Outcome(Verdict.NULL if value is None else Verdict.TRUE if value else Verdict.FALSE)


def compile(expression: str) -> Filter:
    """Return the filter that an expression describes.

    Takes a few microseconds a word, under 100 ms for anything. Keep the filter: it is the same for every message.

    Raises:
        ExpressionRefused: it is no filter, or larger than the bounds; the text says where, why and what to write.
    """
    return Filter(expression, parse(expression))
