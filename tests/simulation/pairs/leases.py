"""`SimLeases`: a system that keeps one record, in virtual time. Answers may be lost, and writes happen late, or twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from halfmoon.broker.pairs.lease import Outcome, Step
from halfmoon.testing.timeline import Timeline

LATE_MS = 200, 6_000
"""When a write happens whose caller waits no longer."""


class SimLeases:
    """The record. ``cut`` are members whose calls come to nothing; ``odd`` is the share of calls that something happens to."""

    def __init__(self, timeline: Timeline, timeout_ms: int) -> None:
        self.text: bytes | None = None
        self.version: str | None = None
        self.cut: set[str] = set()
        self.odd = 0.0
        self.on_change: Callable[[], None] = lambda: None
        self.late_join: Callable[[], None] | None = None
        """Called with the next write that names one member more; it happens late, and the one after it is lost."""
        self._loses_write = False
        self._timeline, self._timeout_ms, self._versions = timeline, timeout_ms, 0
        self._random: Random = timeline.split("leases")

    def call(self, member: str, step: Step, done: Callable[[Outcome], None]) -> None:
        """Carry out a step; ``done`` gets its result within the timeout, once."""
        odd = self._random.random() < self.odd
        timeout_us = self._timeout_ms * 1000
        if self.late_join is not None and self._names_more(step):
            began, self.late_join = self.late_join, None
            self._carry_out(step, lambda outcome: None, self._random.randint(700_000, 950_000), 0)
            self._fail(done, timeout_us)
            self._loses_write = True
            began()
        elif self._loses_write and step.text is not None:
            self._loses_write = False
            self._fail(done, timeout_us)
        elif member in self.cut:
            self._fail(done, timeout_us)
        elif not odd:
            self._carry_out(step, done, self._random.randint(300, 8000), self._random.randint(300, 8000))
        elif (kind := self._random.choice(("lost", "unanswered", "late", "twice", "slow"))) == "slow":
            self._carry_out(step, done, self._random.randint(0, timeout_us // 2), self._random.randint(0, timeout_us // 2))
        else:
            if kind in ("unanswered", "twice"):
                self._carry_out(step, lambda outcome: None, self._random.randint(300, timeout_us), 0)
            if kind in ("late", "twice"):
                self._carry_out(step, lambda outcome: None, self._random.randint(*LATE_MS) * 1000, 0)
            self._fail(done, timeout_us)

    def _names_more(self, step: Step) -> bool:
        try:
            counts = [0 if text is None else len(json.loads(text).get("in_sync", ())) for text in (self.text, step.text)]
        except ValueError:
            return False
        return 0 < counts[0] < counts[1]

    def edit(self, text: bytes | None) -> None:
        """Replace the record by hand."""
        self._versions += 1
        self.text, self.version = text, None if text is None else str(self._versions)
        self._timeline.note("leases", f"edited: {text!r}")

    def _fail(self, done: Callable[[Outcome], None], after_us: int) -> None:
        self._timeline.after_us(after_us, lambda: done(Outcome(error="no answer")))

    def _carry_out(self, step: Step, done: Callable[[Outcome], None], after_us: int, back_us: int) -> None:
        def happen() -> None:
            outcome = self._now(step)
            self._timeline.after_us(back_us, lambda: done(outcome))

        self._timeline.after_us(after_us, happen)

    def _now(self, step: Step) -> Outcome:
        if step.text is None:
            return Outcome(self.text, self.version)
        if step.expected != self.version:
            return Outcome()
        self._versions += 1
        self.text, self.version = step.text, str(self._versions)
        self._timeline.note("leases", step.text.decode())
        self.on_change()
        return Outcome(version=self.version)
