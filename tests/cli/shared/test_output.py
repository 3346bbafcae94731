"""What commands write: errors with their exit code, times, bodies, tables."""

from __future__ import annotations

import io
import json
import re
import sys
from typing import Any

import pytest

from halfmoon.cli.shared.lines import plain
from halfmoon.cli.shared.output import body_text, report, show_table
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
        "error": "CODE: 17 TOPIC_NOT_EXIST  DESC: no topic",
        "kind": "TopicNotFound",
        "code": 17,
    }


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


class Terminal(io.StringIO):
    """Standard output that is a terminal; COLUMNS says how wide."""

    def isatty(self) -> bool:
        return True


def table_on(monkeypatch: pytest.MonkeyPatch, columns: int | None, *table: Any) -> list[str]:
    """Return the lines that a terminal, or with None a pipe, is given for a table, without colours."""
    screen = io.StringIO() if columns is None else Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns or 80))
    monkeypatch.setenv("TERM", "xterm")
    show_table(*table)
    return re.sub("\x1b\\[[0-9;]*m", "", screen.getvalue()).splitlines()


ID = "7F000001" * 4
PENDING = (
    "",
    ("age", "group", "topic", "keys", "id", "sent", "next check"),
    [
        ("5m10s", "P_shop", "orders", "o-1", ID, 1234, "in 10s, if a producer is there"),
        ("1h00m", "P_漢字", "orders", "", ID, 1, "none"),
    ],
)


def test_at_80_columns_the_last_columns_are_left_out_and_a_line_says_which(monkeypatch):
    head, rule, first, second, left = table_on(monkeypatch, 80, *PENDING)

    assert head.split() == ["age", "group", "topic", "keys", "id", "sent"]
    assert first == f" 5m10s  P_shop  orders  o-1   {ID}  1,234"
    assert second == f" 1h00m  P_漢字  orders        {ID}      1"
    assert len(rule) <= 80
    assert left == "left out, for want of room: next check (a wider terminal or --json shows them)"


def test_at_40_columns_what_stays_whole_stands_below_one_another(monkeypatch):
    lines = table_on(monkeypatch, 40, *PENDING)

    assert lines[:2] == [" age    group   topic   keys", "   id"]
    assert lines[3:7] == [" 5m10s  P_shop  orders  o-1", f"   {ID}", " 1h00m  P_漢字  orders", f"   {ID}"]
    assert lines[7].startswith("left out, for want of room: sent, next check (")
    assert max(map(len, lines[:7])) <= 40


def test_a_column_that_would_take_a_line_of_its_own_leaves_its_room_to_those_behind_it(monkeypatch):
    head = table_on(monkeypatch, 60, "", ("id", "last answer", "left"), [(ID, "unknown, and why is a long story", 15)])[0]

    assert head.split() == ["id", "left"]


@pytest.mark.parametrize("columns", [80, 40, 10])
def test_an_id_that_is_wider_than_the_terminal_is_written_whole_on_a_line_of_its_own(monkeypatch, columns):
    long = "k" * 200

    lines = table_on(monkeypatch, columns, "", ("count", "key", "topic"), [(1, long, "orders")])

    assert f"   {long}" in lines or f" {long}" in lines
    assert any("orders" in line for line in lines)


def test_a_pipe_is_as_wide_as_a_table_needs(monkeypatch):
    lines = table_on(monkeypatch, None, *PENDING)

    assert len(lines) == 4
    assert lines[2].endswith("in 10s, if a producer is there")


def test_where_no_column_is_needed_by_a_next_command_the_first_stays(monkeypatch):
    lines = table_on(monkeypatch, 40, "", ("what", "why"), [("x" * 30, "y" * 30)])

    assert lines[0] == " what"
    assert "why" in lines[-1]


def test_a_number_without_a_fraction_has_separators_and_one_that_is_no_number_has_none(monkeypatch):
    assert table_on(monkeypatch, None, "", ("a", "b"), [(1000, True), (2.5, "x")])[2:] == [" 1,000  True", "   2.5  x"]
