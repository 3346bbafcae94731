"""Tests of one property that is compared with one value, on stored bytes, each in a single function: what most filters are made of.

They say what `halfmoon.sql92.predicates` says of the usual message, and ask it about any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from halfmoon.sql92.property_access import Lookup

Test = Callable[[bytes], Any]


def number(name: str, holds: Callable[[Any, Any], bool], constant: float, otherwise: Test) -> Test:
    """Return the test of a property against a number; values other than up to nine digits are left to ``otherwise``."""
    mark = b"\x02" + name.encode() + b"\x01"
    first = mark[1:]

    def test(block: bytes) -> Any:
        _, mark_found, behind = block.rpartition(mark)
        if mark_found:
            value = behind.partition(b"\x02")[0]
            if len(value) < 10 and value.isdigit():
                return holds(int(value), constant)
        elif not block.startswith(first):
            return False
        return otherwise(block)

    return test


def text(name: str, wanted: bytes, lookup: Lookup) -> Test:
    """Return the test whether a property is a text."""
    mark = b"\x02" + name.encode() + b"\x01"

    def test(block: bytes) -> bool:
        _, mark_found, behind = block.rpartition(mark)
        if mark_found and (value := behind.partition(b"\x02")[0]):
            return value == wanted
        return lookup(block) == wanted

    return test


def texts(name: str, wanted: frozenset[bytes], lookup: Lookup) -> Test:
    """Return the test whether a property is one of some texts."""
    mark = b"\x02" + name.encode() + b"\x01"

    def test(block: bytes) -> bool:
        _, mark_found, behind = block.rpartition(mark)
        if mark_found and (value := behind.partition(b"\x02")[0]):
            return value in wanted
        return lookup(block) in wanted

    return test
