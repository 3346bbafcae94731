"""A check as people read it."""

from __future__ import annotations

from halfmoon.cli.doctor.check import OK, PROBLEM, Check


def test_a_remedy_stands_below_what_was_found():
    assert Check("disk", PROBLEM, "full", "free space").lines() == ["problem disk: full", "        → free space"]
    assert Check("disk", OK, "18% used").lines() == ["ok      disk: 18% used"]
