"""Why an expression is refused, with the place and what to write instead; and the bounds of what is accepted."""

from __future__ import annotations

from halfmoon.errors import UsageError

LENGTH_MAX = 32 * 1024
"""Characters of an expression. Thousands of texts in an IN fit; cutting it into tokens takes a few milliseconds."""

NODES_MAX = 1024
"""Nodes of the tree that count: comparisons, AND, OR, NOT, names, numbers. Texts of one IN count as one, for they cost one look.
A test takes under 2,500 steps so (`halfmoon.sql92.tree.steps`)."""

DEPTH_MAX = 50
"""Brackets and signs inside each other; the parser takes seven frames for each, the test of a message at most five."""

LINKS_MAX = 50
"""Comparisons of comparisons, ``a = 1 = 1``, in a whole expression: each makes the tree one deeper."""

SCANS_MAX = 128
"""How often one test may read a value from end to end (`halfmoon.sql92.tree.scans`): the longest values take 15 milliseconds so."""

_NEAR = 24


class ExpressionRefused(UsageError):
    """An expression that is no filter. The text says why, where, and what to write instead.

    ``at`` is the index of the character where it goes wrong, ``trailing`` whether all before it is a whole expression, which the
    original would take, silently ignoring the rest.
    """

    def __init__(self, expression: str, at: int, reason: str, remedy: str = "", *, trailing: bool = False) -> None:
        self.at, self.reason, self.remedy, self.trailing = at, reason, remedy, trailing
        near = " ".join(expression[at : at + _NEAR].split())
        place = f"at character {at + 1}, {near!r}" if near else "at the end"
        super().__init__(f"SQL92 filter, {place}: {reason}" + (f"; {remedy}" if remedy else ""))
