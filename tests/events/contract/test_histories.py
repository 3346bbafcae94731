"""The contract of all providers, over any history of transactions, savepoints, lost messages, failed statements and unsure commits.

Nobody predicts what commits: afterwards the database says it, and events and what was told must agree with that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from halfmoon.events import PublishFailed
from halfmoon.events.publishing.completion import RowDecision
from halfmoon.events.transaction import Status, active_transactions
from halfmoon.model import LocalTransactionState
from tests.events.contract.adapter import Adapter
from tests.events.contract.needing import needs
from tests.events.hearing import Heard


class Mark(NamedTuple):
    """A row with its events. ``fault``: what happens to the first attempt to publish."""

    fault: str


class Fail(NamedTuple):
    """A statement that fails, and the user goes on as if nothing had been."""


class Savepoint(NamedTuple):
    """A savepoint around other steps, which is released or rolled back."""

    steps: list[Any]
    releases: bool


class Transaction(NamedTuple):
    """A whole transaction. ``lost``: the broker hears of no decision."""

    steps: list[Any]
    end: str
    lost: bool


class Undo(Exception):
    """Leaves a block so that it is rolled back."""


FAULTS = {"request lost": (False, 1), "answer lost": (True, 1), "twice lost": (True, 3), "down": (False, 3)}
_marks = st.builds(Mark, st.sampled_from(["", "", "", "", *FAULTS]))
_leaves = _marks | _marks | _marks | st.builds(Fail)
_steps = st.recursive(
    st.lists(_leaves, min_size=1, max_size=3),
    lambda inner: st.lists(_leaves | st.builds(Savepoint, inner, st.booleans()), min_size=1, max_size=4),
    max_leaves=8,
)
_ends = st.sampled_from(["commit", "commit", "rollback", "answer lost", "answer lost", "commit lost"])
HISTORIES = st.lists(st.builds(Transaction, _steps, _ends, st.sampled_from([False, False, True])), min_size=1, max_size=3)
_numbers = count(1)


class Player:
    """Plays a history in an adapter."""

    def __init__(self, data: Adapter) -> None:
        self._data = data
        self.heard: dict[int, tuple[Heard, bool]] = {}
        """By number: who listens, and whether the end of the transaction is unsure."""

    def play(self, one: Transaction) -> None:
        data = self._data
        if one.lost:
            data.bus.lose_second_phase()
        with suppress(Exception), data.block() as handle:
            data.execute(handle, "SELECT 1")
            self._steps(handle, one.steps, unsure=one.end in ("answer lost", "commit lost"))
            if one.end == "rollback":
                raise Undo
            if one.end != "commit":
                data.committing(handle, self._lost(commits=one.end == "answer lost"))
        data.bus.heal()
        data.shut()
        assert not active_transactions()

    def _lost(self, *, commits: bool) -> Callable[[Callable[[], None]], None]:
        def lost(plain: Callable[[], None]) -> None:
            if commits:
                plain()
            raise self._data.lost

        return lost

    def _steps(self, handle: Any, steps: list[Any], *, unsure: bool) -> None:
        for step in steps:
            if isinstance(step, Mark):
                self._mark(handle, step.fault, unsure)
            elif isinstance(step, Fail):
                with suppress(Exception):
                    self._data.execute(handle, "SELECT * FROM nowhere")
            else:
                with suppress(Undo), self._data.savepoint(handle):
                    self._steps(handle, step.steps, unsure=unsure)
                    if not step.releases:
                        raise Undo

    def _mark(self, handle: Any, fault: str, unsure: bool) -> None:
        data, number = self._data, next(_numbers)
        if fault:
            stored, times = FAULTS[fault]
            data.bus.fail_next("prepare", stored=stored, times=times)
        try:
            data.publish(number)
        except PublishFailed:
            assert fault in ("", "twice lost", "down")  # without one the database refuses: its transaction has failed
            if not fault:
                raise
            return
        data.publish(number, transactional=False)
        local = data.provider.current()
        assert local is not None
        local.register(heard := Heard())
        self.heard[number] = heard, unsure
        data.execute(handle, f"INSERT INTO orders VALUES ({number})")

    def check(self) -> None:
        """Compare, after one round of checks."""
        bus = self._data.bus
        bus.check_now()
        rows = set(self._data.rows()) & self.heard.keys()
        told = {number for number, (heard, _) in self.heard.items() if heard.status is Status.COMMITTED}
        seen = sorted(number for number in self._data.seen() if number in self.heard)
        assert seen == sorted([*rows, *told])
        assert told <= rows
        for number, (heard, unsure) in self.heard.items():
            assert heard.status is not None
            assert number in told or number not in rows or unsure, "a commit was not told"
            assert heard.status is not Status.ROLLED_BACK or number not in rows
        assert not bus.pending
        assert bus.contradictions == 0


def some_histories(data: Adapter) -> None:
    @settings(max_examples=20 if data.dialect == "sqlite" else 6, phases=[Phase.generate], derandomize=True, database=None)
    @given(HISTORIES)
    def history(transactions: list[Transaction]) -> None:
        player = Player(data)
        for one in transactions:
            player.play(one)
        player.check()

    history()


@pytest.mark.mission("002-11", "002-30", "002-36", "002-46", "002-47", "002-48", "002-52", "002-53")
def test_after_any_history_consumers_and_listeners_know_what_the_database_holds(data: Adapter):
    some_histories(data)


@needs("sqlite", "dropped")
def test_a_decision_taken_from_what_was_told_is_found(data: Adapter, monkeypatch: pytest.MonkeyPatch):
    def by_what_was_told(decision: RowDecision, status: Status) -> None:
        seen = LocalTransactionState.COMMIT if status is Status.COMMITTED else LocalTransactionState.ROLLBACK
        decision._decider._decide(decision.question, seen)

    monkeypatch.setattr(RowDecision, "after_completion", by_what_was_told)
    with pytest.raises(AssertionError):
        some_histories(data)
