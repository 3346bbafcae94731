"""A line of progress is shown on a terminal only, not too often, and taken away before something else is written."""

from __future__ import annotations

import io
import sys
import time

import pytest

from halfmoon.cli.store.progress import ProgressLine


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_it_is_shown_on_a_terminal_and_taken_away(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressLine("checked") as progress:
        progress.show(1, 2)  # too early
        assert terminal.getvalue() == ""
        progress._last = time.monotonic() - 1
        progress.show(50_000_000, 200_000_000)
        assert "checked 50 of 200 MB, 25 %" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_nothing_is_shown_where_nobody_looks(capsys: pytest.CaptureFixture[str]):
    with ProgressLine("checked") as progress:
        progress._last = time.monotonic() - 1
        progress.show(1, 2)
    assert capsys.readouterr().err == ""
