"""Faults that tests plant into the product, to show that the machine finds them. Each is one patch.

Those of the transport hold for any publisher. Those of the question to the token row name what the publisher asks through:
`checks.tokens.answer` is the one place that reads a row or writes a tombstone, for the broker's check as for the publisher itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halfmoon.events.checks import tokens
from halfmoon.events.memory import transport
from halfmoon.events.memory.transport import MemoryTransport
from halfmoon.model import LocalTransactionState

Plant = Callable[[pytest.MonkeyPatch], None]

FAULTS: dict[str, Plant] = {}


def fault(plant: Plant) -> Plant:
    """Add a fault to the table."""
    FAULTS[plant.__name__.replace("_", " ")] = plant
    return plant


@fault
def a_rollback_is_told_as_a_commit(patch: pytest.MonkeyPatch) -> None:
    real = MemoryTransport.decide
    patch.setattr(MemoryTransport, "decide", lambda self, prepared, *, commit: real(self, prepared, commit=True))


@fault
def a_commit_is_told_as_a_rollback(patch: pytest.MonkeyPatch) -> None:
    real = MemoryTransport.decide
    patch.setattr(MemoryTransport, "decide", lambda self, prepared, *, commit: real(self, prepared, commit=False))


@fault
def nothing_is_told_and_no_check_is_answered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTransport, "decide", lambda self, prepared, *, commit: None)
    patch.setattr(MemoryTransport, "answers", property(lambda self: False))


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


def only_checks_decide(patch: pytest.MonkeyPatch) -> None:
    """Lose all decisions, and have the publisher believe in no transaction: the broker's check alone decides, by the token row."""
    patch.setattr(MemoryTransport, "decide", lambda self, prepared, *, commit: None)
    patch.setattr(transport, "OPEN_MAX", 0)


# ---------------------------------------------------------------- of the publisher that asks the database by itself

TO_BE_FILLED: dict[str, Plant | None] = {
    # where the publisher takes a signal (commit seen, rollback seen) and starts its question: take the signal's word,
    # transport.decide(prepared, commit=signal is "commit"), without the question
    "a decision is taken from a hook instead of the row": None,
    # the function that begins the question of one event returns at once for every third event
    "an event is never asked about": None,
    # in checks.tokens.answer, or what replaces it: run the INSERT of the tombstone in another database or schema, such as by a
    # Provider whose fresh() gives the rows of a temporary table of the same name
    "a tombstone is written into another table": None,
}
"""Faults of the question itself: each needs one line of the publisher that asks the database; None: not planted yet."""
