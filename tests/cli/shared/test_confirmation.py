"""What cannot be undone is asked for: at a terminal with a question, without one only with --yes."""

from __future__ import annotations

import io
import sys

import pytest
import typer

from halfmoon.cli.shared.confirmation import check_terminal, confirm
from halfmoon.errors import UsageError


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

    with pytest.raises(typer.Abort):
        confirm("delete topic orders", yes=False)


@pytest.mark.parametrize("ask", [confirm, check_terminal])
def test_without_a_terminal_nobody_is_asked_and_it_is_refused(monkeypatch, capsys, ask):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))

    with pytest.raises(UsageError, match=r"to delete topic orders must be confirmed.*give --yes. Nothing was done"):
        ask("delete topic orders", yes=False)

    ask("delete topic orders", yes=True)
    assert capsys.readouterr() == ("", "")
