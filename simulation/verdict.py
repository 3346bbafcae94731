"""Verdict on a simulated history, and the errors that servers log while it goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

PROBLEMS_MAX = 20
"""Problems that one checker reports; the first ones tell what is wrong."""

ABOUT_DISKS = ("halfmoon.store.damaged", "halfmoon.store.health", "halfmoon.broker.tables")
"""Loggers whose errors report faults of a disk: a history asked for those, and its checkers judge what comes of them."""

NO_ROOM = ("the store is open for reading only: the disk is full", "the disk is full; the ")
"""Beginnings of the errors that a start logs on a disk without room: a history asked for that, too."""


@dataclass
class Verdict:
    """Result of a history: ``problems`` is empty when every promise held. ``counts`` says how much happened, by what it is."""

    workload: str
    seed: int
    flush: str
    kinds: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counts: dict[str, int | str] = field(default_factory=dict)
    virtual_ms: int = 0
    events: int = 0
    lines: list[str] = field(default_factory=list)

    def __getitem__(self, what: str) -> int:
        return int(self.counts[what])

    def summary(self) -> str:
        """Return one line about it."""
        outcome = "held" if not self.problems else f"{len(self.problems)} PROBLEMS"
        counts = "".join(f", {count} {what}" for what, count in self.counts.items())
        return (
            f"seed {self.seed}, {self.workload}: {outcome}; {self.flush} flush{counts},"
            f" {self.virtual_ms / 1000:.1f} s, {self.events} events; {', '.join(self.kinds)}"
        )


def by_checker(problems: dict[str, list[str]]) -> list[str]:
    """Return the problems of checkers, `PROBLEMS_MAX` of each at most, each with its checker's name before it."""
    return [f"{checker}: {problem}" for checker, those in problems.items() for problem in those[:PROBLEMS_MAX]]


class ErrorsLogged(logging.Handler):
    """Passes on what servers log as an error: ``note`` gets every text, ``problem`` those that no disk fault explains."""

    def __init__(self, note: Callable[[str], None], problem: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._note, self._problem = note, problem

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on one line of the log, with the error that it is about."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]!r})"
        self._note(text)
        if record.name not in ABOUT_DISKS and not text.startswith(NO_ROOM):
            self._problem(f"logged: {text}")


@contextmanager
def errors_logged(note: Callable[[str], None], problem: Callable[[str], None]) -> Iterator[None]:
    """Listen to the loggers of servers inside the block; see `ErrorsLogged`."""
    handler = ErrorsLogged(note, problem)
    logging.getLogger("halfmoon").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("halfmoon").removeHandler(handler)
