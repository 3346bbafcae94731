"""The command that holds all others: unknown commands and options, and the version."""

from __future__ import annotations

from halfmoon.hot import NATIVE


def test_an_unknown_command_is_refused_with_the_nearest_right_one(run_alone):
    ran = run_alone("topics")

    assert ran.code == 2
    assert "Did you mean 'topic'" in ran.err


def test_a_wrong_option_is_refused(run_alone):
    assert run_alone("topic", "list", "--bogus").code == 2


def test_the_version_is_told(run_alone):
    ran = run_alone("--version")

    assert (ran.code, ran.out.split()[0]) == (0, "halfmoon")
    assert ran.out.endswith(f"with halfmoon-native {NATIVE}\n" if NATIVE else "without halfmoon-native\n")
