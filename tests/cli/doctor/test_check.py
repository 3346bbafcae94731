"""A check as people read it."""

from __future__ import annotations

from halfmoon.cli.doctor.check import OK, PROBLEM, Check


def test_a_remedy_stands_below_what_was_found_and_neither_steers_a_terminal(capsys):
    Check("disk", PROBLEM, "full\x1b[2J", "free space").show()
    Check("disk", OK, "18% used").show()

    assert capsys.readouterr().out == "problem disk: full·[2J\n        → free space\nok      disk: 18% used\n"
