"""`Check`, one thing that `halfmoon doctor` looked at: what it found, and the remedy."""

from __future__ import annotations

from typing import NamedTuple

from halfmoon.cli.shared.output import styled

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"
"""States of a check. A note says what only some need; a problem makes the exit code 1."""
_STYLES = {OK: "32", WARNING: "33", PROBLEM: "31"}


class Check(NamedTuple):
    """Result of one check. ``do`` is the remedy; empty: there is nothing to do."""

    name: str
    state: str
    what: str
    do: str = ""

    def lines(self) -> list[str]:
        """Return the check for people: what it found, and below it the remedy."""
        found = f"{styled(f'{self.state:<8}', _STYLES.get(self.state, ''))}{self.name}: {self.what}"
        return [found, f"        → {self.do}"] if self.do else [found]
