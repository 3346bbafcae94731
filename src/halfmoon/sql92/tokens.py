"""The words of a filter expression, one at a time. Knows no grammar and looks no further than it is asked to.

Follows SelectorParser.jj (RocketMQ 4.9.7 and 5.3.3).
Differs: a comment ``-- …`` may end with the expression; the original then reads two minus signs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from halfmoon.sql92.refusals import LENGTH_MAX, ExpressionRefused

KEYWORDS = frozenset({"AND", "OR", "NOT", "BETWEEN", "IN", "IS", "TRUE", "FALSE", "NULL"})
SEARCHES = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
"""Words of 5.x. They are operators only behind an operand; elsewhere they are names, as they were in 4.x."""

_EXPONENT = r"[eE][+-]?[0-9]++"
_TOKEN = re.compile(
    r"(?P<blank>[ \t\n\r\f]++|--[^\n\r]*+|/\*(?s:.*?)\*/)"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*+)"
    r"|(?P<text>'(?:[^']++|'')*+')"
    rf"|(?P<double>[0-9]++\.[0-9]*+(?:{_EXPONENT})?|\.[0-9]++(?:{_EXPONENT})?|[0-9]++{_EXPONENT})"
    r"|(?P<whole>[0-9]++[lL]?)"
    r"|(?P<sign><>|<=|>=|[=<>(),+-])"
)  # possessive throughout: no text makes it look at a character more than a few times
_BLANKS, _TEXT = r"[ \t\n\r\f]*+", r"'(?:[^']++|'')*+'"
_TEXTS = re.compile(rf"(?:{_BLANKS},{_BLANKS}{_TEXT})++")
_EACH_TEXT = re.compile(_TEXT)

_MISTAKES = {
    "!": "write <> for unequal",
    '"': "texts stand in single quotes: 'text'",
    "|": "write OR",
    "&": "write AND",
    "/": "there is no arithmetic, and a comment ends with */",
    ".": "a name has letters, digits, _ and $ only",
    ":": "there are no parameters: write the value",
    "?": "there are no parameters: write the value",
    "*": "there is no arithmetic, and no expression for everything: subscribe with the tag expression *",
    "%": "there is no arithmetic",
    "[": "the texts of IN stand in round brackets",
    "‘": "texts stand in plain single quotes: 'text'",
    "“": "texts stand in plain single quotes: 'text'",
}


class SqlToken(NamedTuple):
    """One word. ``kind`` is ``name``, ``text``, ``double``, ``whole``, ``end``, or the keyword or sign itself in capitals."""

    kind: str
    text: str
    at: int


class Tokens:
    """The words of one expression: `now` is the one to look at, `take` goes on to the next."""

    def __init__(self, expression: str) -> None:
        if len(expression) > LENGTH_MAX:
            reason = f"it has {len(expression):,} characters, and {LENGTH_MAX:,} are the most"
            raise ExpressionRefused(expression, LENGTH_MAX, reason, "take several subscriptions, or filter where you consume")
        self.expression, self._next = expression, 0
        self.now = self._cut()

    def take(self) -> SqlToken:
        """Return the present word and go on. Raises ExpressionRefused where the next characters are no word."""
        taken = self.now
        self.now = self._cut()
        return taken

    def take_texts(self) -> list[str]:
        """Take what comes next as long as it is a comma and a text, and return these texts, a list of thousands in one stroke.

        Comments end it, so that there may be more. Raises as `take`.
        """
        match = _TEXTS.match(self.expression, self.now.at)
        if match is None:
            return []
        self._next = match.end()
        self.now = self._cut()
        return _EACH_TEXT.findall(match.group())

    def _cut(self) -> SqlToken:
        expression = self.expression
        while match := _TOKEN.match(expression, self._next):
            at, self._next = self._next, match.end()
            kind, text = match.lastgroup or "", match.group()
            if kind == "blank":
                continue
            if kind == "name" and text.upper() in KEYWORDS:
                return SqlToken(text.upper(), text, at)
            return SqlToken(text if kind == "sign" else kind, text, at)
        if self._next >= len(expression):
            return SqlToken("end", "", len(expression))
        raise self._no_word()

    def _no_word(self) -> ExpressionRefused:
        expression, at = self.expression, self._next
        if expression[at] == "'":
            return ExpressionRefused(expression, at, "a text has no end", "close it with ', and write '' for a quote inside")
        if expression.startswith("/*", at):
            return ExpressionRefused(expression, at, "a comment has no end", "close it with */")
        remedy = _MISTAKES.get(expression[at], "")
        return ExpressionRefused(expression, at, f"{expression[at]!r} is no part of the language", remedy)
