"""From a filter expression to its tree, or to a refusal that says where and why. Bounded in length, depth and nodes.

Follows SelectorParser.jj and the checks of ComparisonExpression (RocketMQ 5.3.3; 4.9.7 has no CONTAINS, STARTSWITH, ENDSWITH).
Differs: text after a whole expression is refused, where the original ignores it, so that ``a = 1 b = 2`` or ``a LIKE 'x%'`` looked
accepted and meant something else; CONTAINS and its like are still names where an operand stands, as in 4.x.
"""

from __future__ import annotations

from collections.abc import Callable

from halfmoon.sql92 import tree
from halfmoon.sql92.numbers import INT_MAX, LONG_MAX, double_order
from halfmoon.sql92.refusals import DEPTH_MAX, LINKS_MAX, NODES_MAX, SCANS_MAX, ExpressionRefused
from halfmoon.sql92.tokens import SEARCHES, SqlToken, Tokens

ORDERS = frozenset({">", ">=", "<", "<="})

_MISSING_WORDS = {
    "LIKE": "there is no LIKE: use CONTAINS, STARTSWITH or ENDSWITH",
    "ESCAPE": "there is no ESCAPE",
    "+": "there is no arithmetic",
    "-": "there is no arithmetic, and no dash in a name",
    "(": "there are no functions",
    ",": "a list stands in the brackets of IN only",
    ")": "a bracket closes that none opened",
}
"""Frequent mistakes behind a whole expression, and their corrections."""

_MISSING_OPERANDS = {
    "=": "write = once",
    ">": "write >=, <= or <>",
    "NOT": "write NOT before the whole comparison, in brackets: NOT (a = 1)",
    ")": "the brackets are empty, or a sign has nothing behind it",
    "end": "a sign or a bracket has nothing behind it",
}


def parse(expression: str) -> tree.Node:
    """Return the tree of an expression.

    Raises:
        ExpressionRefused: it is none, or larger than the bounds.
    """
    try:
        expression.encode()
    except UnicodeEncodeError as wrong:
        raise ExpressionRefused(expression[: wrong.start], wrong.start, "it contains half of a surrogate pair") from None
    return _Parser(expression).whole()


class _Parser:
    """One expression being read: one method a level of the grammar, the loosest first."""

    def __init__(self, expression: str) -> None:
        self._tokens = Tokens(expression)
        self._depth = self._nodes = self._links = 0

    def whole(self) -> tree.Node:
        start = self._tokens.now
        if start.kind == "end":
            raise self._refused(start, "it is empty", "write a condition such as a = 'x'")
        whole = self._condition(self._alternatives(), start)
        end = self._tokens.now
        if end.kind != "end":
            remedy = _MISSING_WORDS.get(end.text.upper(), "join conditions by AND or OR")
            raise self._refused(end, "the expression is whole before this", remedy, trailing=True)
        if (count := tree.scans(whole)) > SCANS_MAX:
            reason = f"one test would search texts or read floating-point numbers {count:,} times, and {SCANS_MAX} are the most"
            raise self._refused(start, reason, "compare with whole numbers, or with whole texts by IN")
        return whole

    def _alternatives(self) -> tree.Node:
        return self._joined("OR", self._conjunction)

    def _conjunction(self) -> tree.Node:
        return self._joined("AND", self._equality)

    def _joined(self, word: str, operand: Callable[[], tree.Node]) -> tree.Node:
        start = self._tokens.now
        first = operand()
        if self._tokens.now.kind != word:
            return first
        parts = _spliced(word, self._condition(first, start))
        while self._tokens.now.kind == word:
            self._count(self._tokens.take())
            start = self._tokens.now
            parts += _spliced(word, self._condition(operand(), start))
        return tree.Logic(word, tuple(parts))

    def _equality(self) -> tree.Node:
        left, links = self._comparison(), 0
        while self._tokens.now.kind in ("=", "<>", "IS"):
            sign = self._link(links)
            links += 1
            if sign.kind == "IS":
                negated = self._taken("NOT")
                self._expect("NULL", "IS tests for NULL only: write a = TRUE for true")
                left = tree.Not(tree.IsNull(left)) if negated else tree.IsNull(left)
            else:
                equal = self._equal(left, sign, self._comparison())
                left = equal if sign.kind == "=" else tree.Not(equal)
        return left

    def _equal(self, left: tree.Node, sign: SqlToken, right: tree.Node) -> tree.Node:
        for side in (left, right):
            if isinstance(side, tree.Constant) and side.kind == "null":
                raise self._refused(sign, "nothing is compared with NULL", "write IS NULL or IS NOT NULL")
        if isinstance(left, tree.Constant) and left.kind == "bool" and isinstance(right, tree.Constant) and right.kind != "bool":
            raise self._refused(sign, "a truth value is never equal to a number or a text")
        return tree.Equal(left, right)

    def _comparison(self) -> tree.Node:
        left, links = self._signed(), 0
        while True:
            sign = self._tokens.now
            word = sign.text.upper()
            if sign.kind in ORDERS:
                self._link(links)
                left = self._order(sign, left, self._signed())
            elif sign.kind in ("BETWEEN", "IN", "NOT") or (sign.kind == "name" and word in SEARCHES):
                self._link(links)
                left = self._listed(left, sign)
            else:
                return left
            links += 1

    def _listed(self, left: tree.Node, sign: SqlToken) -> tree.Node:
        """Read on behind ``left [NOT] BETWEEN``, ``IN`` or a search; ``sign`` is the word that was taken."""
        negated = sign.kind == "NOT"
        if negated:
            sign = self._tokens.take()
        word = sign.text.upper()
        if sign.kind == "BETWEEN":
            return self._between(left, sign, negated)
        if sign.kind == "IN":
            if not isinstance(left, tree.Name):
                raise self._refused(sign, "IN stands behind a property's name only")
            return tree.In(left, frozenset(self._texts()), negated)
        if sign.kind == "name" and word in SEARCHES:
            return tree.Search(word, left, self._text(), negated)
        remedy = _MISSING_WORDS.get(word, "write NOT (…) before what shall not be, or NOT IN, NOT BETWEEN")
        raise self._refused(sign, "NOT stands before BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH here", remedy)

    def _between(self, value: tree.Node, sign: SqlToken, negated: bool) -> tree.Node:
        low = self._signed()
        self._expect("AND", "BETWEEN needs two bounds: a BETWEEN 1 AND 9")
        high = self._signed()
        if negated:
            return tree.Logic("OR", (self._order(sign, value, low, "<"), self._order(sign, value, high, ">")))
        if (
            isinstance(low, tree.Constant)
            and isinstance(high, tree.Constant)
            and {low.kind, high.kind} <= tree.NUMBERS
            and not _rising(low, high)
        ):
            raise self._refused(sign, "the lower bound of BETWEEN is above the upper one", "write the smaller number first")
        return tree.Logic("AND", (self._order(sign, value, low, ">="), self._order(sign, value, high, "<=")))

    def _order(self, token: SqlToken, left: tree.Node, right: tree.Node, sign: str = "") -> tree.Node:
        for side in (left, right):
            if (isinstance(side, tree.Constant) and side.kind not in tree.NUMBERS) or tree.is_condition(side):
                raise self._refused(token, "only numbers and properties have an order", "compare texts with = or <>")
        return tree.Order(sign or token.kind, left, right)

    def _signed(self) -> tree.Node:
        token = self._tokens.now
        if token.kind not in ("+", "-", "NOT"):
            return self._operand()
        self._deeper(self._tokens.take())
        of = self._condition(self._signed(), token) if token.kind == "NOT" else self._signed()
        self._depth -= 1
        return tree.Not(of) if token.kind == "NOT" else tree.Negate(of) if token.kind == "-" else of

    def _operand(self) -> tree.Node:
        token = self._tokens.take()
        self._count(token)
        if token.kind == "name":
            return tree.Name(token.text)
        if token.kind == "text":
            return tree.Constant("text", _unquoted(token.text))
        if token.kind in ("whole", "double"):
            return self._number(token)
        if token.kind in ("TRUE", "FALSE", "NULL"):
            return tree.Constant("null", None) if token.kind == "NULL" else tree.Constant("bool", token.kind == "TRUE")
        if token.kind != "(":
            raise self._refused(
                token, "a property, a number, a text or a bracket is missing", _MISSING_OPERANDS.get(token.kind, "")
            )
        self._deeper(token)
        inside = self._alternatives()
        self._expect(")", "a bracket that opened is not closed")
        self._depth -= 1
        return inside

    def _number(self, token: SqlToken) -> tree.Node:
        text = token.text
        if token.kind == "double":
            value = float(text)
            if not 0.0 < value < float("inf"):
                raise self._refused(token, "a floating-point number is 0 or too large", "write 0 for zero")
            return tree.Constant("double", value)
        digits = text.rstrip("lL")
        if len(text) > 1 and text[0] == "0":
            raise self._refused(token, "a whole number begins with 0", "write it without leading zeros")
        if len(digits) > 19 or int(digits) > LONG_MAX:
            raise self._refused(
                token, "a whole number does not fit 64 bits", f"write it as {digits[:20]}… with a point and a 0 behind"
            )
        return tree.Constant("int" if int(digits) <= INT_MAX else "long", int(digits))

    def _texts(self) -> list[bytes]:
        self._expect("(", "the texts of IN stand in brackets: a IN ('x', 'y')")
        texts = [self._text()]
        while self._tokens.now.kind == ",":
            texts += map(_unquoted, self._tokens.take_texts())
            if self._taken(","):
                texts.append(self._text())
        self._expect(")", "the texts of IN are joined by commas and end with a bracket")
        return texts

    def _text(self) -> bytes:
        token = self._tokens.take()
        if token.kind != "text":
            remedy = f"write '{token.text}'" if token.kind in ("whole", "double", "name") and len(token.text) < 20 else ""
            raise self._refused(token, "a text in single quotes is missing", remedy)
        return _unquoted(token.text)

    # ------------------------------------------------------------ small change

    def _condition(self, node: tree.Node, start: SqlToken) -> tree.Node:
        if isinstance(node, tree.Name):
            return tree.Bare(node)
        if not tree.is_condition(node):
            raise self._refused(start, "this is no condition: it is neither true nor false", "compare it with something")
        return node

    def _taken(self, kind: str) -> bool:
        if self._tokens.now.kind != kind:
            return False
        self._tokens.take()
        return True

    def _expect(self, kind: str, reason: str) -> None:
        if not self._taken(kind):
            raise self._refused(self._tokens.now, reason)

    def _link(self, links: int) -> SqlToken:
        """Take the sign of a comparison; one behind another makes the tree deeper."""
        token = self._tokens.take()
        self._count(token)
        self._links += links > 0
        if self._links > LINKS_MAX:
            raise self._refused(token, f"more than {LINKS_MAX} comparisons stand behind another without AND or OR")
        return token

    def _deeper(self, token: SqlToken) -> None:
        self._count(token)
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._refused(token, f"brackets and signs are more than {DEPTH_MAX} deep", "take brackets away")

    def _count(self, token: SqlToken) -> None:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise self._refused(token, f"it has more than {NODES_MAX:,} parts", "write a = 'x' OR a = 'y' as a IN ('x', 'y')")

    def _refused(self, token: SqlToken, reason: str, remedy: str = "", *, trailing: bool = False) -> ExpressionRefused:
        return ExpressionRefused(self._tokens.expression, token.at, reason, remedy, trailing=trailing)


def _spliced(word: str, node: tree.Node) -> list[tree.Node]:
    """Return the parts of a condition of the same word: ``a OR (b OR c)`` is tested as ``a OR b OR c``, with the same outcome."""
    return list(node.parts) if isinstance(node, tree.Logic) and node.word == word else [node]


def _rising(low: tree.Constant, high: tree.Constant) -> bool:
    if "double" in (low.kind, high.kind):
        return double_order(float(high.value or 0), float(low.value or 0)) >= 0
    return int(high.value or 0) >= int(low.value or 0)


def _unquoted(text: str) -> bytes:
    return text[1:-1].replace("''", "'").encode()
