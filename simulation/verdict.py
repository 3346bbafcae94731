"""What came of a simulated history, and the block in which one is judged. Each workload counts what is its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from halfmoon.testing.cluster import Cluster
from simulation.ledger import Ledger


@dataclass
class Verdict:
    """What came of a history: ``problems`` is empty when everything held."""

    workload: ClassVar[str]
    """What the users did, in a word."""
    counts: ClassVar[str]
    """How much happened, in words, with the names of fields in braces."""

    seed: int
    flush: str
    kinds: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    virtual_ms: int = 0
    events: int = 0
    lines: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Return one line about it."""
        outcome = "held" if not self.problems else f"{len(self.problems)} PROBLEMS"
        return (
            f"seed {self.seed}, {self.workload}: {outcome}; {self.flush} flush, {self.counts.format_map(vars(self))},"
            f" {self.virtual_ms / 1000:.1f} s, {self.events} events; {', '.join(self.kinds)}"
        )


PROBLEMS_MAX = 20
"""Problems that one checker reports; the first ones tell what is wrong."""


def by_checker(problems: dict[str, list[str]], most: int = PROBLEMS_MAX) -> list[str]:
    """Return the problems of checkers, each with its checker's name before it, ``most`` of each checker."""
    return [f"{checker}: {problem}" for checker, those in problems.items() for problem in those[:most]]


ABOUT_DISKS = ("halfmoon.store.damaged", "halfmoon.store.health", "halfmoon.broker.tables")
"""Loggers whose errors say what a disk did: in a history that is what was asked of it, and what comes of it is judged."""

NO_ROOM = ("the store is open for reading only: the disk is full", "the disk is full; the ")
"""How the errors begin that a start logs on a disk without room: that, too, was asked of the disk."""


class ErrorsLogged(logging.Handler):
    """Makes problems of a history of the errors that servers log. ``cluster`` is the history's, once there is one."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(logging.ERROR)
        self.cluster: Cluster | None = None
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        """Write down what was logged."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]!r})"
        if self.cluster is not None:
            self.cluster.timeline.note("log", text)
        if record.name not in ABOUT_DISKS and not text.startswith(NO_ROOM):
            self._ledger.unexpected.append(f"logged: {text}")


@contextmanager
def judging(verdict: Verdict, ledger: Ledger, **options: Any) -> Iterator[Cluster]:
    """Run a history inside the block, with a new cluster of the verdict's seed and flush; ``options`` go to `Cluster`.

    What the history raises and what servers log as an error become problems of ``verdict``, which is told how long the cluster
    lived.
    """
    errors = ErrorsLogged(ledger)
    logging.getLogger("halfmoon").addHandler(errors)
    try:
        errors.cluster = Cluster(verdict.seed, flush=verdict.flush, **options)
        yield errors.cluster
    except Exception as exc:
        verdict.problems = [*ledger.unexpected, f"raised: {type(exc).__name__}: {exc}"]
        logging.getLogger("halfmoon.simulation").info("seed %d", verdict.seed, exc_info=True)
    finally:
        logging.getLogger("halfmoon").removeHandler(errors)
    if errors.cluster is not None:
        timeline = errors.cluster.timeline
        verdict.virtual_ms, verdict.events, verdict.lines = timeline.elapsed_ms, timeline.steps, list(timeline.history)
