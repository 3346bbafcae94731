"""The program of a bulk filter: conditions whose truth is plain, and UNSURE for all others."""

from __future__ import annotations

import pytest

from halfmoon.sql92.bulk_filter import ALL_UNSURE, UNSURE, program
from halfmoon.sql92.parser import parse


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a > 5", ("number", b"a\x01", ">", 5)),
        ("5 < a", ("number", b"a\x01", ">", 5)),
        ("a = -1.5", ("number", b"a\x01", "=", -1.5)),
        ("a = 'x'", ("text", b"a\x01", b"x")),
        ("a IS NULL OR b", ("any", [("null", b"a\x01"), ("bare", b"b\x01")])),
        ("a NOT IN ('y', 'x')", ("in", b"a\x01", [b"x", b"y"], True)),
        ("a = b", UNSURE),
        ("NOT (a = TRUE)", ("not", UNSURE)),
    ],
)
def test_the_program_of_an_expression(expression: str, expected: tuple[object, ...]):
    assert program(parse(expression)) == expected


def test_a_filter_that_is_unsure_of_all_gives_them_out():
    assert ALL_UNSURE.matching([b"a\x011\x02", b""]) == ([], [0, 1])
