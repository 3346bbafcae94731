"""Progress of long jobs on standard error: tasks of Spark's stages, batches, rows a second."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

from pyspark.sql import SparkSession

LOOK_S = 0.5
QUIET_S = 2.0
"""Runtime before which a job shows no progress."""


class JobProgress:
    """Progress of a session, as a context manager: on a terminal one line that changes, else a line every few seconds.

    `note` adds text of the job itself (batches, rows).
    """

    def __init__(self, session: SparkSession, what: str, *, quiet: bool = False, out: TextIO | None = None) -> None:
        self._session, self._what, self._quiet, self._out = session, what, quiet, out or sys.stderr
        self._note, self._shown, self._told = "", 0, 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, text: str) -> None:
        """Set the text of the job itself."""
        self._note = text

    def __enter__(self) -> Self:
        if not self._quiet:
            self._thread = threading.Thread(target=self._run, name="halfmoon-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(5)
        if self._shown:
            self._out.write("\r" + " " * self._shown + "\r")
            self._out.flush()

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._ended.wait(LOOK_S):
            age = time.monotonic() - begun
            if age >= QUIET_S:
                self.show(f"{self._what}: {age:.0f} s{self.tasks()}{', ' if self._note else ''}{self._note}")

    def tasks(self) -> str:
        """Return how many tasks of the running stages are done."""
        tracker = self._session.sparkContext.statusTracker()
        done = total = 0
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
        return f", {done} of {total} tasks" if total else ""

    def show(self, line: str) -> None:
        """Write a line: over the one before on a terminal, now and then elsewhere."""
        if self._out.isatty():
            self._out.write("\r" + line.ljust(self._shown))
            self._shown = len(line)
        elif time.monotonic() - self._told >= 5:
            self._told = time.monotonic()
            self._out.write(line + "\n")
        self._out.flush()
