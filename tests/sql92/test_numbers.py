"""Texts as Java reads them as numbers, and the order of its doubles."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.sql92.numbers import Unfit, double_of, double_order, int_of, long_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("5", 5), ("-5", -5), ("+5", 5), ("007", 7), ("-0", 0), ("2147483647", 2**31 - 1), ("-2147483648", -(2**31)),
        ("0" * 32_000 + "5", 5), ("٣", 3), ("１２", 12), ("-٣", -3),
    ],
)  # fmt: skip
def test_a_whole_number_is_read(text, value):
    assert (int_of(text.encode()), long_of(text.encode())) == (value, value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "+",
        "+-5",
        "5.0",
        "1e3",
        " 5",
        "5 ",
        "5\n",
        "1_000",
        "0x5",
        "5L",
        "abc",
        "²",
        "½",
        "\U0001d7d6",
        "9" * 19,
        "9" * 32_000,
    ],
)
def test_what_is_no_whole_number_of_32_bits_is_unfit(text):
    with pytest.raises(Unfit):
        int_of(text.encode())


def test_the_bounds_of_32_and_64_bits_are_kept():
    assert long_of(b"2147483648") == 2**31
    assert (long_of(b"9223372036854775807"), long_of(b"-9223372036854775808")) == (2**63 - 1, -(2**63))
    for reader, text in [(int_of, b"2147483648"), (int_of, b"-2147483649"), (long_of, b"9223372036854775808"), (int_of, b"\xff5")]:
        with pytest.raises(Unfit):
            reader(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5.0), ("5.", 5.0), (".5", 0.5), ("-5.25", -5.25), ("+1e3", 1000.0), ("1E-2", 0.01), ("5d", 5.0), ("5.5F", 5.5),
        (" \t5\n", 5.0), ("\x00\x1f7", 7.0), ("Infinity", math.inf), ("-Infinity", -math.inf), ("1e999", math.inf), ("0x1p3", 8.0),
        ("-0X.8p1", -1.0), ("0x1p3f", 8.0), ("0x1.8P+1", 3.0), ("0x1p99999", math.inf), ("1e-999", 0.0), ("007.50", 7.5),
    ],
)  # fmt: skip
def test_a_floating_point_number_is_read(text, value):
    assert double_of(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "+",
        "inf",
        "nan",
        "infinity",
        "1_0",
        "0x1",
        "0xp1",
        "1e",
        "1e+",
        "5dd",
        "٣",
        "5\u00a0",
        "NaNd",
        "1,5",
        "--5",
        "0x1.8",
    ],
)
def test_what_is_no_floating_point_number_is_unfit(text):
    with pytest.raises(Unfit):
        double_of(text.encode())


def test_nan_is_above_all_and_equal_to_itself_and_the_zeros_differ():
    assert math.isnan(double_of(b"NaN"))
    assert math.copysign(1, double_of(b"-0.0")) == -1
    assert math.copysign(1, double_of(b" -0x0p1 ")) == -1
    assert double_order(math.nan, math.inf) > 0 > double_order(math.inf, math.nan)
    assert double_order(math.nan, -math.nan) == 0
    assert double_order(0.0, -0.0) > 0 > double_order(-0.0, 0.0)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_other_numbers_have_the_usual_order(one, other):
    if one != other:
        assert (double_order(one, other) > 0) == (one > other)


@pytest.mark.parametrize(
    "text", [b"1" * 32_000 + b"x", b" " * 32_000, b"0" * 32_000 + b"x", b"0x" + b"1" * 32_000, b"1e" + b"9" * 32_000 + b"x"]
)
def test_a_long_text_takes_no_long_time(text):
    began = time.process_time()
    for reader in (int_of, long_of, double_of):
        with pytest.raises(Unfit):
            reader(text)

    assert time.process_time() - began < 0.05
