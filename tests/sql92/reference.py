"""A second, naive reading of SQL92: random trees, their texts, and what they say of a dict of properties, one rule after the other.

Written without the package's parser, lookups or closures, so that both must be wrong in the same way to agree by mistake.
"""

from __future__ import annotations

import math
import re
from random import Random
from typing import Any

NAMES = ("a", "b", "$c", "_d1", "TAGS", "In_")
TEXTS = (
    "", "x", "X", "5", "5.0", "-3", "+7", "007", "true", "TRUE", "3000000000", "NaN", "Infinity", "-0.0", " 5 ", "0x1p3", "1e3",
    "5d", "it's", "é", "٣", "ß\x01y", "5_0", "inf", "9223372036854775808", "abcabc", "bc", "-", "１２",
)  # fmt: skip
WHOLE = ("0", "1", "5", "7", "3", "1000", "2147483647", "2147483648", "3000000000", "9223372036854775807", "5L", "7l")
DOUBLES = ("5.0", "5.", ".5", "1e3", "3E0", "8.0", "9007199254740993.0", "1.5e-3")

Tree = tuple[Any, ...]


class Wrong(Exception):
    """The expression cannot be evaluated on these properties."""


# ---------------------------------------------------------------- random trees


def condition(random: Random, depth: int = 3) -> Tree:
    """Return a random condition that the language accepts."""
    kind = random.choice(("or", "and", "or", "and", "not", "leaf", "leaf", "leaf")) if depth else "leaf"
    if kind in ("or", "and"):
        return (kind, [condition(random, depth - 1) for _ in range(random.randint(2, 3))])
    if kind == "not":
        return ("not", condition(random, depth - 1))
    return _leaf(random, depth)


def _leaf(random: Random, depth: int) -> Tree:
    kind = random.choice(("=", "=", "=", "<>", "order", "order", "order", "between", "in", "in", "null", "search", "bare", "bool"))
    if kind in ("=", "<>"):
        left, right = (_side(random, depth) for _ in range(2))
        if left[0] == "bool" and right[0] in ("text", "whole", "double"):
            left, right = right, left
        return (kind, left, right)
    if kind == "order":
        return (random.choice((">", ">=", "<", "<=")), _ordered(random), _ordered(random))
    if kind == "between":
        low, high = _ordered(random), _ordered(random)
        negated = random.random() < 0.4
        if not negated and low[0] in ("whole", "double") and high[0] in ("whole", "double") and _compare(_of(high), _of(low)) < 0:
            low, high = high, low
        return ("between", _ordered(random), low, high, negated)
    if kind == "in":
        return ("in", ("name", random.choice(NAMES)), random.choices(TEXTS, k=random.randint(1, 7)), random.random() < 0.4)
    if kind == "null":
        return ("null?", _side(random, depth), random.random() < 0.5)
    if kind == "search":
        word = random.choice(("CONTAINS", "STARTSWITH", "ENDSWITH"))
        return ("search", word, _side(random, 0), random.choice(TEXTS), random.random() < 0.4)
    return ("bare", random.choice(NAMES)) if kind == "bare" else ("bool", random.random() < 0.5)


def _side(random: Random, depth: int) -> Tree:
    kind = random.choice(("name",) * 6 + ("text",) * 4 + ("whole",) * 3 + ("double", "bool", "minus", "condition"))
    if kind == "condition":
        found = condition(random, depth - 1) if depth else ("name", random.choice(NAMES))
        return ("name", found[1]) if found[0] == "bare" else found  # beside a sign it is the property itself
    return _operand(random, kind)


def _ordered(random: Random) -> Tree:
    return _operand(random, random.choice(("name", "name", "name", "whole", "whole", "double", "minus")))


def _operand(random: Random, kind: str) -> Tree:
    if kind == "minus":
        return ("minus", _operand(random, random.choice(("whole", "whole", "double", "name", "text"))))
    values = {"name": NAMES, "text": TEXTS, "whole": WHOLE, "double": DOUBLES, "bool": (True, False)}[kind]
    return (kind, random.choice(values))


def properties(random: Random) -> dict[str, str]:
    """Return random properties, some of which the expressions name."""
    names = random.sample((*NAMES, "other", "aa", "A"), random.randint(0, 7))
    return {name: text for name in names if (text := random.choice(TEXTS))}


# ---------------------------------------------------------------- their texts


def written(tree: Tree, random: Random) -> str:
    """Return a tree as an expression: words in any case, blanks, comments, more brackets than needed."""
    return _blanks(random) + _written(tree, random) + _blanks(random)


def _written(tree: Tree, random: Random) -> str:
    def word(text: str) -> str:
        return random.choice((text, text.lower(), text.capitalize()))

    def part(each: Tree) -> str:
        text = _written(each, random)
        return f"({text})" if each[0] not in ("name", "text", "whole", "double", "bool", "bare") or random.random() < 0.1 else text

    def joined(*parts: str) -> str:
        return "".join(f"{_blanks(random)} {each}{_blanks(random)}" for each in parts)

    kind = tree[0]
    if kind in ("or", "and"):
        return joined(*[text for each in tree[1] for text in (word(kind.upper()), part(each))][1:])
    if kind == "not":
        return joined(word("NOT"), part(tree[1]))
    if kind == "minus":
        return " - " + joined(part(tree[1]))  # the blank keeps it from a comment
    if kind in ("=", "<>", ">", ">=", "<", "<="):
        return joined(part(tree[1]), kind, part(tree[2]))
    if kind == "between":
        return joined(part(tree[1]), word("NOT") if tree[4] else "", word("BETWEEN"), part(tree[2]), word("AND"), part(tree[3]))
    if kind == "in":
        listed = "(" + ",".join(joined(_quoted(text)) for text in tree[2]) + ")"
        return joined(part(tree[1]), word("NOT") if tree[3] else "", word("IN"), listed)
    if kind == "null?":
        return joined(part(tree[1]), word("IS"), word("NOT") if tree[2] else "", word("NULL"))
    if kind == "search":
        return joined(part(tree[2]), word("NOT") if tree[4] else "", word(tree[1]), _quoted(tree[3]))
    if kind == "bool":
        return word(str(tree[1]).upper())
    return _quoted(tree[1]) if kind == "text" else str(tree[1])


def _blanks(random: Random) -> str:
    return random.choice(("", "", "", "", " ", "\n", "\t ", "/* a ' comment **/", "-- another\n"))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# ---------------------------------------------------------------- what they say


def evaluate(tree: Tree, found: dict[str, str]) -> Any:
    """Return True, False or None. Raises Wrong."""
    kind = tree[0]
    if kind in ("or", "and"):
        ends, null = kind == "or", False
        for each in tree[1]:
            value = evaluate(each, found)
            if value is ends:
                return ends
            null = null or value is None
        return None if null else not ends
    if kind in ("not", "<>"):
        value = evaluate(tree[1] if kind == "not" else ("=", *tree[1:]), found)
        return None if value is None else not value
    if kind == "=":
        left, right = _of(tree[1], found), _of(tree[2], found)
        if left is None or right is None:
            return True if left is right else None if left is None else False
        return _compare(left, right, equality=True) == 0
    if kind == "between":
        low, high = ("<", ">") if tree[4] else (">=", "<=")
        return evaluate(("or" if tree[4] else "and", [(low, tree[1], tree[2]), (high, tree[1], tree[3])]), found)
    if kind in (">", ">=", "<", "<="):
        left = _of(tree[1], found)
        right = None if left is None else _of(tree[2], found)
        if left is None or right is None:
            return None
        order = _compare(left, right)
        return {">": order > 0, ">=": order >= 0, "<": order < 0, "<=": order <= 0}[kind]
    return _evaluate_test(tree, found)


def _evaluate_test(tree: Tree, found: dict[str, str]) -> Any:
    if tree[0] == "in":
        value = found.get(tree[1][1])
        return None if value is None else (value in tree[2]) != tree[3]
    if tree[0] == "null?":
        return (_of(tree[1], found) is None) != tree[2]
    if tree[0] == "bare":
        return False if tree[1] in found else None
    if tree[0] == "search":
        value = _of(tree[2], found) if tree[3] else None
        if not isinstance(value, str):
            return False
        holds = {"CONTAINS": tree[3] in value, "STARTSWITH": value.startswith(tree[3]), "ENDSWITH": value.endswith(tree[3])}
        return holds[tree[1]] != tree[4]
    return tree[1]


class _Int(int):
    """A number of 32 bits."""


class _Long(int):
    """A number of 64 bits."""


def _of(tree: Tree, found: dict[str, str] | None = None) -> Any:
    """Return an operand's value: None, bool, _Int, _Long, float or str."""
    kind, value = tree[0], tree[1]
    if kind == "name":
        return (found or {}).get(value)
    if kind == "whole":
        number = int(value.rstrip("lL"))
        return _Int(number) if number < 2**31 else _Long(number)
    if kind == "double":
        return float(value)
    if kind == "minus":
        number = _of(value, found)
        return type(number)(-number) if isinstance(number, _Int | _Long | float) else None
    return value if kind in ("text", "bool") else evaluate(tree, found or {})


def _compare(left: Any, right: Any, *, equality: bool = False) -> int:
    if isinstance(left, str) and isinstance(right, str):
        if equality:
            return 0 if left == right else 1
        left, right = _read(left, float), _read(right, float)
    if isinstance(left, bool) or isinstance(right, bool):
        if isinstance(left, bool) and isinstance(right, str):
            raise Wrong("a truth value has no text")
        left = left.lower() == "true" if isinstance(left, str) else left
        return (left > right) - (left < right) if isinstance(left, bool) and isinstance(right, bool) else -1
    if isinstance(left, str):
        left = _read(left, type(right))
    if isinstance(right, str):
        right = _read(right, type(left))
    if isinstance(left, float) or isinstance(right, float):
        ranks = [(math.isnan(x), 0.0 if math.isnan(x) else x, math.copysign(1, x)) for x in (float(left), float(right))]
        return 0 if all(rank[0] for rank in ranks) else int(ranks[0] > ranks[1]) - int(ranks[0] < ranks[1])
    return int(left > right) - int(left < right)


def _read(text: str, kind: type) -> Any:
    if kind is float:
        bare = text.strip("".join(map(chr, range(33))))
        if re.fullmatch(r"[+-]?(NaN|Infinity)", bare):
            return float(bare)
        if re.fullmatch(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?", bare):
            return float.fromhex(re.sub("[fFdD]$", "", bare) if re.search("[pP].*[fFdD]$", bare) else bare)
        if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?", bare):
            return float(bare.rstrip("fFdD"))
        raise Wrong(text)
    bits = 32 if kind is _Int else 64
    if not re.fullmatch(r"[+-]?\d+", text) or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
        raise Wrong(text)
    return kind(int(text))
