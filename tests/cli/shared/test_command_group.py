"""The command that holds all others: unknown commands and options, and the version."""

from __future__ import annotations

import pytest

from halfmoon.hot import NATIVE


def test_an_unknown_command_is_refused_with_the_nearest_right_one(run_alone):
    ran = run_alone("grouq")

    assert ran.code == 2
    assert "Did you mean 'group'" in ran.err


def test_a_wrong_option_is_refused(run_alone):
    assert run_alone("topic", "list", "--bogus").code == 2


@pytest.mark.parametrize("words", [(), ("topic",)])
def test_a_group_without_a_command_shows_its_help_on_standard_output(run_alone, words):
    asked = run_alone(*words, "--help")

    assert (asked.code, asked.err) == (0, "")
    assert run_alone(*words) == (2, asked.out, "")  # still no success: a script whose variable is empty has run no command


def test_the_version_is_told(run_alone):
    ran = run_alone("--version")

    assert (ran.code, ran.out.split()[0]) == (0, "halfmoon")
    assert ran.out.endswith(f"with halfmoon-native {NATIVE}\n" if NATIVE else "without halfmoon-native\n")


@pytest.mark.parametrize("columns", ["80", "76", "75", "40"])
@pytest.mark.parametrize("words", ["", "serve", "msg find", "dlq list", "spark trace", "spark txn audit"])
def test_the_help_cuts_no_option_at_any_width(run_alone, monkeypatch, columns, words):
    monkeypatch.setenv("COLUMNS", columns)
    ran = run_alone(*words.split(), "--help")

    cut = [line for line in ran.out.replace("spark://…", "").splitlines() if "…" in line]
    assert (ran.code, cut) == (0, [])


def test_lines_of_the_help_are_as_long_as_there_is_room_for_whatever_the_source_looks_like(run_alone, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.strip() for line in run_alone("fsck", "--help").out.splitlines()]

    assert any(len(line) > 70 for line in lines)
