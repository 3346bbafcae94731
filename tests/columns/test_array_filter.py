"""Conditions on many messages at once, with numpy: true, false, null, or unsure."""

from __future__ import annotations

import pytest

from halfmoon import arrays
from halfmoon.columns.array_filter import FALSE, NULL, TRUE, UNSURE, ArrayFilter, conditions

BLOCKS = [b"a\x015\x02b\x01x\x02", b"a\x0117\x02", b"b\x01y\x02", b"a\x01seven\x02", b"a\x015\x02a\x0120\x02"]


@pytest.mark.parametrize(
    ("program", "truths"),
    [
        (("number", b"a\x01", ">", 10), [FALSE, TRUE, NULL, UNSURE, TRUE]),
        (("text", b"b\x01", b"x"), [TRUE, NULL, FALSE, NULL, NULL]),
        (("null", b"a\x01"), [FALSE, FALSE, TRUE, FALSE, FALSE]),
        (("not", ("null", b"a\x01")), [TRUE, TRUE, FALSE, TRUE, TRUE]),
        (("all", [("null", b"b\x01"), ("number", b"a\x01", ">", 10)]), [FALSE, TRUE, FALSE, UNSURE, TRUE]),
        (("any", [("null", b"b\x01"), ("number", b"a\x01", ">", 10)]), [FALSE, TRUE, NULL, TRUE, TRUE]),
        (("search", b"b\x01", "CONTAINS", b"x", False), [UNSURE] * 5),
    ],
)
def test_truths(program: tuple[object, ...], truths: list[int]):
    arrays.load()
    assert ArrayFilter(arrays.np, BLOCKS).truths(program).tolist() == truths


def test_conditions_are_counted():
    assert conditions(("all", [("null", b"b\x01"), ("not", ("any", [("bare", b"a\x01"), ("bare", b"b\x01")]))])) == 3
