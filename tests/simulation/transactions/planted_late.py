"""Brokers with a fault planted into what holds for transactions that stay open for long, or are decided after expiry."""

from __future__ import annotations

from typing import Any

from halfmoon.broker.transactions.answers import Answer
from halfmoon.store.transactions.index import State
from tests.simulation.faulty import faulty_broker


@faulty_broker
def deaf(broker: Any) -> None:
    """A broker that does not hear that a transaction is open: to it the answer is *unknown*, as to the original."""
    answers = broker.transactions.decisions.answers
    enter = answers.enter
    answers.enter = lambda answer, *which: enter(Answer.UNKNOWN if answer is Answer.OPEN else answer, *which)  # type: ignore[method-assign]


@faulty_broker
def counting(broker: Any) -> None:
    """A broker that hears that a transaction is open, and counts the checks all the same."""
    index = broker.transactions.index
    answered = index.answered
    index.answered = lambda number, answer, back=0, pardons=0: answered(number, answer, back=back)  # type: ignore[method-assign]


@faulty_broker
def unforgiving(broker: Any) -> None:
    """A broker that refuses what is decided after expiry, as ours once did."""
    broker.transactions.decisions._late_decisions = _NothingExpired(broker.transactions.decisions._late_decisions)  # type: ignore[assignment]


class _NothingExpired:
    def __init__(self, late: Any) -> None:
        self._late_decisions = late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._late_decisions, name)

    def copy_of(self, key: str, group: str, place: int) -> None:
        return None


@faulty_broker
def redelivering(broker: Any) -> None:
    """A broker that forgets at once what was committed after expiry: each repeat is one more message, as with the original."""
    late = broker.transactions.decisions._late_decisions
    committed = late.committed
    late.committed = lambda copy: committed(copy) and None  # type: ignore[method-assign]


@faulty_broker
def relenting(broker: Any) -> None:
    """A broker that does not remember a rollback that came after expiry."""
    late = broker.transactions.decisions._late_decisions
    committed = late.committed
    late.committed = lambda copy: committed(copy) or None  # type: ignore[method-assign]


@faulty_broker
def parallel(broker: Any) -> None:
    """A broker that commits what expired although it was resumed: both become visible."""
    broker.transactions.decisions._late_decisions.successor = lambda copy: None  # type: ignore[method-assign]


@faulty_broker
def obliging(broker: Any) -> None:
    """A broker that agrees to a late commit and stores nothing."""
    decisions = broker.transactions.decisions
    decisions._end_late = lambda completion, copy, now: None  # type: ignore[method-assign]


@faulty_broker
def complaisant(broker: Any) -> None:
    """A broker that agrees to a rollback by hand of what expired, whatever became of it since."""
    pending = broker.transactions.pending
    pending._became = lambda half: (half.state == State.COMMITTED, State(half.state).name)  # type: ignore[method-assign]


@faulty_broker
def content(broker: Any) -> None:
    """A broker that asks nobody else before the next round when a member says that a check is not its own."""
    broker.transactions.decisions.answers.on_not_mine = lambda index: None
