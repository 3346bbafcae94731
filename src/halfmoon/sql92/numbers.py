"""Numbers as Java reads and orders them, over the bytes of a property. Pure functions.

Follows Integer.valueOf, Long.valueOf, Double.valueOf and Double.compareTo (Java 8 to 17).
"""

from __future__ import annotations

import math
import re
import unicodedata

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

_DOUBLE = re.compile(
    rb"[\x00-\x20]*+[+-]?(?:NaN|Infinity|(?P<plain>(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)[fFdD]?"
    rb"|(?P<hex>0[xX](?:[0-9a-fA-F]++\.?[0-9a-fA-F]*+|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++)[fFdD]?)[\x00-\x20]*+"
)


class Unfit(Exception):
    """A value cannot be read as a comparison wants it. Arguments: the value, and what it should have been."""


def int_of(text: bytes) -> int:
    """Return a property as a whole number of 32 bits. Raises Unfit: it is none."""
    if len(text) < 10 and text.isdigit():
        return int(text)
    return _whole(text, INT_MIN, INT_MAX, "a whole number of 32 bits")


def long_of(text: bytes) -> int:
    """Return a property as a whole number of 64 bits. Raises Unfit: it is none."""
    if len(text) < 19 and text.isdigit():
        return int(text)
    return _whole(text, LONG_MIN, LONG_MAX, "a whole number of 64 bits")


def double_of(text: bytes) -> float:
    """Return a property as a floating-point number; blanks around it are let be, and hexadecimal forms are read. Raises Unfit."""
    if text.replace(b".", b"", 1).isdigit():
        return float(text)
    match = _DOUBLE.fullmatch(text)
    if match is None:
        raise Unfit(text, "a floating-point number")
    if plain := match["plain"]:
        value = float(plain)
    elif hexadecimal := match["hex"]:
        try:
            value = float.fromhex(hexadecimal.decode())
        except OverflowError:
            value = math.inf
    else:
        value = math.nan if b"NaN" in text else math.inf
    return -value if text.lstrip(_BLANKS).startswith(b"-") else value


def double_order(left: float, right: float) -> int:
    """Return a negative number, 0 or a positive one. NaN is above all numbers and equal to itself, -0.0 below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right)


_BLANKS = bytes(range(0x21))


def _rank(value: float) -> int:
    """Order what ``<`` and ``>`` leave alike: -0.0, 0.0, and NaN, which is alike with every number."""
    return 1 if value != value else -1 if value == 0 and math.copysign(1, value) < 0 else 0


def _whole(text: bytes, low: int, high: int, what: str) -> int:
    digits = text if text.isascii() else _ascii_digits(text)
    negative = digits[:1] == b"-"
    if digits[:1] in (b"-", b"+"):
        digits = digits[1:]
    if len(digits) > 19:
        digits = digits.lstrip(b"0") or b"0"  # before they are looked at: no long text is read to its end
    if len(digits) > 19 or not digits.isdigit():
        raise Unfit(text, what)
    value = -int(digits) if negative else int(digits)
    if not low <= value <= high:
        raise Unfit(text, what)
    return value


def _ascii_digits(text: bytes) -> bytes:
    """Return a text with the digits of all scripts as ASCII ones, as Java reads them: those of one UTF-16 unit only."""
    return "".join(
        str(unicodedata.decimal(character, "x")) if character > "\x7f" and character <= "\uffff" else character
        for character in text.decode("utf-8", "replace")
    ).encode("ascii", "replace")
