"""Our SQL92 filters beside Apache's own classes: thousands of expressions, right, damaged and thrown together, on the same bytes.

Both must accept and refuse the same, and say the same of every message: true, false, null or that it cannot be evaluated. Where
they differ on purpose, `reason_of` says why and asks for proof.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from halfmoon import sql92
from halfmoon.sql92 import ExpressionRefused, FilterVerdict
from halfmoon.sql92.refusals import DEPTH_MAX, LINKS_MAX, NODES_MAX
from tests.interop.java_peer import JavaPeer
from tests.sql92 import reference

LETTERS = {FilterVerdict.TRUE: "t", FilterVerdict.FALSE: "f", FilterVerdict.NULL: "n", FilterVerdict.UNFIT: "e"}
SEARCH = re.compile(r"\b(contains|startswith|endswith)\b", re.I)
WORDS = [
    *("a", "b", "$c", "contains", "and", "or", "not", "between", "in", "is", "null", "true", "false", "=", "<>", ">", ">="),
    *("<", "<=", "(", ")", ",", "+", "-", "'x'", "'5'", "''", "5", "0", "1.5", ".5", "3000000000", "7L", "/*c*/", "--", "\n"),
    *("CONTAINS", "STARTSWITH", "endswith", "LIKE", ".", "!", "1e400", "0.0", "01", "'it''s'", "\u212a", "\u017f", "é"),
]
ODD_BLOCKS = [
    b"", b"a\x01\xff\x02b\x01\xfe\x02", b"a\x01x\x02a\x01\x02b\x017", b"a\x015\x02a\x016\x02", b"\x01x\x02a",
    b"a\x01x\x01y\x02b\x01x",
    b"a\x01\xe4\xb8\x02b\x01\xef\xbf\xbd\x02", b"a\x01\xed\xa0\x80\x02", b"a\x010.1e1\x02b\x011", b"a\x01 1 \x02b\x010x1p0\x02",
]  # fmt: skip


def expressions(random: Random, count: int) -> list[str]:
    """Return random expressions: a quarter right, a quarter damaged, half words thrown together. None leaves a comment open."""
    found = []
    for _ in range(count // 4):
        found.append(reference.written(reference.condition(random), random))
        found.append(_damaged(reference.written(reference.condition(random, random.randrange(3)), random), random))
        found += [" ".join(random.choice(WORDS) for _ in range(random.randint(1, 7))) for _ in range(2)]
    return [text + "\n" if "--" in text.rpartition("\n")[2] else text for text in found]


def _damaged(text: str, random: Random) -> str:
    for _ in range(random.randint(1, 3)):
        at, other, word = random.randrange(len(text) + 1), random.randrange(len(text) + 1), random.choice(WORDS)
        text = random.choice(
            (
                text[:at] + text[at + random.randint(1, 6) :],
                text[:at] + word + text[at:],
                f"{text[:at]} {word} {text[at + 3 :]}",
                text[:at] + text[min(at, other) : max(at, other)] + text[at:],
            )
        ) or "a"  # fmt: skip
    return text


def ours(expression: str, blocks: list[bytes]) -> str | ExpressionRefused:
    """Return a letter a block, as Java's side does, or the refusal."""
    try:
        wanted = sql92.compile(expression)
    except ExpressionRefused as refused:
        return refused
    letters = "".join(LETTERS[wanted.outcome(block).verdict] for block in blocks)
    assert wanted.matching(blocks) == [at for at, letter in enumerate(letters) if letter == "t"], expression
    return letters


def reason_of(expression: str, theirs: str, version: str, blocks: list[bytes]) -> str:
    """Return "same", or why ours differs, "" for no reason that would be right."""
    mine = ours(expression, blocks)
    if mine == theirs or (isinstance(mine, ExpressionRefused) and theirs == "refused"):
        return "same"
    searching = SEARCH.search(expression) is not None
    if version == "4.9.7" and searching:
        return "4.x knows no CONTAINS, STARTSWITH, ENDSWITH: a name there, and behind a whole expression ignored"
    if isinstance(mine, str):
        return "ours takes CONTAINS and its like as a name where an operand stands" if theirs == "refused" and searching else ""
    if mine.trailing and ours(expression[: mine.at], blocks) == theirs:
        return "the original ignores what stands behind a whole expression"
    if "begins with 0" in mine.reason and ours(expression[: mine.at + 1], blocks) == theirs:
        return "the original reads a 0 and ignores the rest"
    return ""


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_ours_accepts_refuses_and_says_what_the_original_does(java: Callable[..., JavaPeer], version: str) -> None:
    random = Random(f"sql92 {version}")
    asked = expressions(random, 3000)
    blocks = [_block(reference.properties(random)) for _ in range(30)] + ODD_BLOCKS
    encoded = [base64.b64encode(block).decode() for block in blocks]

    answers = java(version).call("filter", expressions=asked, blocks=encoded)

    reasons = {text: reason_of(text, theirs, version, blocks) for text, theirs in zip(asked, answers, strict=True)}
    assert [(text, theirs) for text, theirs in zip(asked, answers, strict=True) if not reasons[text]] == []
    counts = Counter(reasons.values())
    letters = Counter(letter for answer in answers if answer != "refused" for letter in answer)
    assert counts["same"] > 2000
    assert counts["the original ignores what stands behind a whole expression"] > 50
    assert all(letters[letter] > 500 for letter in "tfne")  # the comparison is of something
    assert 500 < answers.count("refused") < 2500


@pytest.mark.parametrize(
    ("expression", "theirs"),
    [
        ("a = '5' b = 2", "tf"),  # ignores the second half
        ("a LIKE '5%'", "ff"),  # a bare property, never true
        ("a = 05", "ff"),  # a = 0
        ("a = --5", "tf"),  # two signs, where a comment would need its line's end
        ("(" * (DEPTH_MAX + 1) + "a = 5" + ")" * (DEPTH_MAX + 1), "tf"),
        ("a" + " IS NULL" * (LINKS_MAX + 2), "ff"),
        (" OR ".join(["a = 5"] * NODES_MAX), "tf"),
    ],
    ids=["behind", "like", "zero", "comment", "brackets", "links", "nodes"],
)
def test_what_ours_refuses_and_the_original_takes(java: Callable[..., JavaPeer], expression: str, theirs: str) -> None:
    blocks = [b"a\x015\x02", b"a\x014\x02"]
    encoded = [base64.b64encode(block).decode() for block in blocks]

    assert java("4.9.7").call("filter", expressions=[expression], blocks=encoded) == [theirs]
    with pytest.raises(ExpressionRefused):
        sql92.compile(expression)


def _block(found: dict[str, str]) -> bytes:
    return b"".join(f"{name}\x01{text}\x02".encode() for name, text in found.items())
