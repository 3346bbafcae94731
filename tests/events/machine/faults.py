"""Faults that tests plant into the product, to show that the machine finds them. Each is one patch.

They are faults of the question to the token row, which the publisher asks by itself (`publishing.decider`) and for the broker's
check (`checks.tokens`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from halfmoon.effects import Op
from halfmoon.events.checks import tokens
from halfmoon.events.publishing.completion import RowDecision
from halfmoon.events.publishing.decider import Decider
from halfmoon.events.tables import TOKENS
from halfmoon.events.testing import MemoryTransport
from halfmoon.events.transaction import Status
from halfmoon.model import LocalTransactionState, Message

Plant = Callable[[pytest.MonkeyPatch], None]

FAULTS: dict[str, Plant] = {}


def fault(plant: Plant) -> Plant:
    """Add a fault to the table."""
    FAULTS[plant.__name__.replace("_", " ")] = plant
    return plant


@fault
def an_absent_row_is_taken_for_a_commit(patch: pytest.MonkeyPatch) -> None:
    only_checks_decide(patch)
    real = tokens.answer

    def answer(*arguments: Any, **options: Any) -> LocalTransactionState:
        found = real(*arguments, **options)
        return LocalTransactionState.COMMIT if found is LocalTransactionState.ROLLBACK else found

    patch.setattr(tokens, "answer", answer)


@fault
def an_open_transaction_is_taken_for_a_rollback(patch: pytest.MonkeyPatch) -> None:
    """The question is asked while the transaction runs, and its absence is believed."""
    only_checks_decide(patch)
    patch.setattr(tokens, "answer", lambda *arguments, **options: LocalTransactionState.ROLLBACK)


@fault
def a_decision_is_taken_from_a_hook_instead_of_the_row(patch: pytest.MonkeyPatch) -> None:
    real = RowDecision.after_completion

    def after_completion(self: RowDecision, status: Status) -> None:
        if status is not Status.UNKNOWN:
            commit = status is Status.COMMITTED
            self._decider._decide(self.question, LocalTransactionState.COMMIT if commit else LocalTransactionState.ROLLBACK)
        real(self, status)

    patch.setattr(RowDecision, "after_completion", after_completion)


@fault
def an_event_is_never_asked_about(patch: pytest.MonkeyPatch) -> None:
    """One in three: its process takes its transaction for open as long as it lives."""
    real, numbers = Decider.watch, count(1)

    def watch(self: Decider, *arguments: Any) -> Any:
        question = real(self, *arguments)
        if next(numbers) % 3 == 0:
            self._take(question)
        return question

    patch.setattr(Decider, "watch", watch)


@fault
def a_tombstone_is_written_into_the_wrong_schema(patch: pytest.MonkeyPatch) -> None:
    """SQLite's ``temp``, in which a table of the same name hides that of ``main``."""
    real = tokens.settle

    def settle(provider: Any, *arguments: Any, **options: Any) -> LocalTransactionState:
        @contextmanager
        def elsewhere(**wait: Any) -> Iterator[Any]:
            with provider.fresh(**wait) as rows:
                rows.run(f"CREATE TEMP TABLE {TOKENS.name} AS SELECT * FROM main.{TOKENS.name} WHERE 1 = 0")
                yield rows
                rows.run(f"DROP TABLE temp.{TOKENS.name}")

        return real(SimpleNamespace(fresh=elsewhere), *arguments, **options)  # type: ignore[arg-type]

    patch.setattr(tokens, "settle", settle)


def only_checks_decide(patch: pytest.MonkeyPatch) -> None:
    """Lose all decisions, and have the publisher believe in no transaction: the broker's check alone decides, by the token row."""
    patch.setattr(MemoryTransport, "decide", lambda self, half, *, commit: None)
    prepare = MemoryTransport.prepare

    def left_at_once(self: MemoryTransport, messages: Sequence[Message], timeout_ms: int, **options: Any) -> Op[Sequence[Any]]:
        halves = yield from prepare(self, messages, timeout_ms, **options)
        for half in halves:
            self.leave(half)
        return halves

    patch.setattr(MemoryTransport, "prepare", left_at_once)
