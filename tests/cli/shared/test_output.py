"""What commands write: errors with their exit code, times, bodies, tables."""

from __future__ import annotations

import json

import pytest

from halfmoon.cli.shared.lines import plain
from halfmoon.cli.shared.output import body_text, report, show_table, span_text, time_text
from halfmoon.errors import ConnectFailed, SettingError, broker_error


@pytest.mark.parametrize(
    ("error", "code"), [(SettingError("x"), 2), (ConnectFailed("x", "h:1"), 1), (broker_error(17, "no topic"), 1)]
)
def test_an_error_of_the_caller_is_exit_code_2_all_others_1(capsys, error, code):
    assert report(error, as_json=False) == code
    assert capsys.readouterr().err.startswith("halfmoon: ")


def test_a_refusal_is_told_with_its_code_and_to_programs_as_json(capsys):
    report(broker_error(17, "no topic"), as_json=True)

    assert json.loads(capsys.readouterr().err) == {
        "error": "CODE: 17  DESC: no topic",
        "kind": "TopicNotFound",
        "code": 17,
    }


def test_times_are_shown_in_utc_and_none_as_nothing():
    assert time_text(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert time_text(0) == time_text(-1) == ""


@pytest.mark.parametrize("ms", [253_402_300_800_000, 10**18 - 1, 2**63 - 1])
def test_a_time_that_no_calendar_has_is_shown_as_its_number(ms):
    assert time_text(253_402_300_799_999) == "9999-12-31T23:59:59.999Z"
    assert time_text(ms) == f"{ms} ms"


@pytest.mark.parametrize("char", ["\x1b", "\x00", "\n", "\r", "\x7f", "\x9b", "\u202e", "\u2066"])
def test_texts_of_others_steer_no_terminal(capsys, char):
    show_table("", ("key",), [(f"o-1{char}[2J",)])

    assert plain(f"o-1{char}") == "o-1·"
    assert plain("Zoë 漢字") == "Zoë 漢字"
    assert "o-1·[2J" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "shown"), [(b"plain", "plain"), (b"a\nb\x1b[1m", "a·b·[1m"), (b"\xff", "\\xff"), (b"x" * 50, "x" * 9 + "…")]
)
def test_a_body_is_one_line_without_control_characters(body, shown):
    assert body_text(body, 10) == shown


def test_a_table_shows_every_cell_as_it_is_and_nothing_as_none(capsys):
    show_table("", ("name", "count"), [("[bold]", 1234)])
    show_table("things", ("name",), [])

    out = capsys.readouterr().out
    assert "[bold]" in out
    assert "1,234" in out
    assert "things: none" in out


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-5, "0.0s"), (0, "0.0s"), (1234, "1.2s"), (59_999, "59.9s"), (60_000, "1m00s"), (310_000, "5m10s"), (3_599_999, "59m59s"),
     (7_380_000, "2h03m"), (86_400_000, "1d00h"), (273_600_000, "3d04h")],
)  # fmt: skip
def test_a_span_of_time_is_short_and_never_rounds_up_into_the_next_unit(ms, text):
    assert span_text(ms) == text
