"""Progress of long work: one line on a terminal, a line now and then elsewhere, nothing where nobody reads it."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from halfmoon.spark.jobs.progress import JobProgress

STAGES = {3: SimpleNamespace(numCompletedTasks=2, numTasks=5), 4: None}


class Session:
    """A session with one stage at work."""

    class sparkContext:
        @staticmethod
        def statusTracker() -> Any:
            return SimpleNamespace(getActiveStageIds=lambda: list(STAGES), getStageInfo=STAGES.get)


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_is_removed_at_the_end():
    out, session = Terminal(), Session()
    progress = JobProgress(session, "ingest", out=out)  # type: ignore[arg-type]
    progress.show(f"ingest: 3 s{progress.tasks()}")
    progress.show("ingest: 4 s")
    progress.__exit__(None, None, None)

    assert out.getvalue() == "\ringest: 3 s, 2 of 5 tasks\r" + "ingest: 4 s".ljust(25) + "\r" + " " * 11 + "\r"


def test_elsewhere_a_line_is_written_every_few_seconds_only():
    out = io.StringIO()
    progress = JobProgress(Session(), "ingest", out=out)  # type: ignore[arg-type]
    progress.show("ingest: 3 s")
    progress.show("ingest: 4 s")

    assert out.getvalue() == "ingest: 3 s\n"
