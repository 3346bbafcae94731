"""Asking before something is done that cannot be undone. Needs a terminal, or ``--yes``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from halfmoon.cli.shared.lines import plain
from halfmoon.errors import UsageError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation; required without a terminal.")]


def confirm(what: str, *, yes: bool) -> None:
    """Ask whether something is to be done, ``what`` in words; return if so.

    Raises:
        UsageError: nobody can be asked, because standard input is no terminal.
        typer.Abort: the answer is no.
    """
    check_terminal(what, yes=yes)
    if yes:
        return
    sys.stderr.write(f"{plain(what)}? [y/N]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort


def check_terminal(what: str, *, yes: bool) -> None:
    """Raise UsageError where somebody must be asked and cannot. For what takes a while before it can ask."""
    if not yes and not sys.stdin.isatty():
        raise UsageError(f"to {what} must be confirmed, and standard input is no terminal: give --yes. Nothing was done")
