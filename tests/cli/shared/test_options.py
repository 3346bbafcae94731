"""Texts of options: times and pairs."""

from __future__ import annotations

import io
import sys
import time

import click
import pytest

from halfmoon.cli.shared.options import check_terminal, confirm, duration_ms, pairs, time_ms
from halfmoon.errors import UsageError


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1970-01-01 00:00:01.250", 1250),
    ],
)
def test_a_time_is_milliseconds_or_iso_8601(text, ms):
    assert time_ms(text) == ms


@pytest.mark.parametrize(("text", "age_ms"), [("10s", 10_000), ("5m", 300_000), ("2h", 7_200_000), ("3d", 259_200_000), ("1ms", 1)])
def test_an_age_is_counted_back_from_now(text, age_ms):
    assert abs(time.time() * 1000 - age_ms - time_ms(text)) < 5_000


@pytest.mark.parametrize("text", ["", "yesterday", "5x", "-1", "9" * 30, "2026-02-30"])
def test_anything_else_is_refused(text):
    with pytest.raises(click.BadParameter):
        time_ms(text)


def test_pairs_split_at_the_first_equals_sign():
    assert pairs(["a=b=c", "d="], "--prop") == {"a": "b=c", "d": ""}


@pytest.mark.parametrize("text", ["a", "=b"])
def test_a_pair_without_a_name_or_a_sign_is_refused(text):
    with pytest.raises(click.BadParameter, match="--prop"):
        pairs([text], "--prop")


@pytest.mark.parametrize(
    ("text", "ms"), [("300ms", 300), ("10s", 10_000), ("5m", 300_000), (" 2h ", 7_200_000), ("3d", 259_200_000), ("0", 0)]
)
def test_a_duration_is_a_number_and_a_unit(text, ms):
    assert duration_ms(text, "--for") == ms


@pytest.mark.parametrize("text", ["", "m", "-5m", "5 m", "1h30m", "9999999999s", "1.5s"])
def test_anything_else_is_no_duration(text):
    with pytest.raises(click.BadParameter, match=f"--for {text}: is not a duration"):
        duration_ms(text, "--for")


def test_a_number_without_a_unit_is_refused_with_both_readings():
    with pytest.raises(click.BadParameter, match=r"--for 10: 10s or 10ms\?"):
        duration_ms("10", "--for")


@pytest.mark.parametrize("text", ["9ms", "61m"])
def test_a_duration_that_is_out_of_bounds_is_refused_with_them(text):
    with pytest.raises(click.BadParameter, match=f"--poll {text}: must be between 10ms and 1h"):
        duration_ms(text, "--poll", at_least="10ms", at_most="1h")
    assert duration_ms("10ms", "--poll", at_least="10ms", at_most="1h") == 10
    assert duration_ms("60m", "--poll", at_least="10ms", at_most="1h") == 3_600_000


@pytest.mark.parametrize("text", ["10", "1700000000", "99999999999"])
def test_a_small_number_is_no_time_because_it_may_be_meant_as_an_age_or_in_seconds(text):
    with pytest.raises(click.BadParameter, match=f"{text}: {text}s or {text}ms ago, or a time"):
        time_ms(text)


# ---------------------------------------------------------------- what cannot be undone


class Terminal(io.StringIO):
    """Standard input at which somebody sits who has typed something."""

    def isatty(self) -> bool:
        return True


def test_the_question_says_what_will_happen_on_standard_error_and_yes_is_an_answer(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))

    confirm("delete topic orders\x1b and all its messages", yes=False)

    assert capsys.readouterr() == ("", "delete topic orders· and all its messages? [y/N]: ")


@pytest.mark.parametrize("typed", ["n\n", "\n", ""])
def test_anything_else_ends_the_command(monkeypatch, typed):
    monkeypatch.setattr(sys, "stdin", Terminal(typed))

    with pytest.raises(click.Abort):
        confirm("delete topic orders", yes=False)


@pytest.mark.parametrize("ask", [confirm, check_terminal])
def test_without_a_terminal_nobody_is_asked_and_it_is_refused(monkeypatch, capsys, ask):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))

    with pytest.raises(UsageError, match=r"^Not done. Add --yes to delete topic orders.*\.$"):
        ask("delete topic orders", yes=False)

    ask("delete topic orders", yes=True)
    assert capsys.readouterr() == ("", "")
