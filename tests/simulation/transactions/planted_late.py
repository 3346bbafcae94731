"""Brokers with a fault planted into what holds for transactions that stay open for long, or are decided after expiry."""

from __future__ import annotations

from typing import Any

from halfmoon.broker.broker import Broker
from halfmoon.broker.transactions.decisions import Answer
from halfmoon.store.transactions.index import State


def deaf(*arguments: Any) -> Any:
    """A broker that does not hear that a transaction is open: to it the answer is *unknown*, as to the original."""
    broker = Broker(*arguments)
    decisions = broker.transactions.decisions
    checked = decisions._checked
    decisions._checked = lambda completion, answer: checked(  # type: ignore[method-assign]
        completion, Answer.UNKNOWN if answer is Answer.OPEN else answer
    )
    return broker


def counting(*arguments: Any) -> Any:
    """A broker that hears that a transaction is open, and counts the checks all the same."""
    broker = Broker(*arguments)
    index = broker.transactions.index
    answered = index.answered
    index.answered = lambda number, answer, pardons=False: answered(number, answer)  # type: ignore[method-assign]
    return broker


def unforgiving(*arguments: Any) -> Any:
    """A broker that refuses what is decided after expiry, as ours once did."""
    broker = Broker(*arguments)
    broker.transactions.decisions._late_decisions = _NothingExpired(broker.transactions.decisions._late_decisions)  # type: ignore[assignment]
    return broker


class _NothingExpired:
    def __init__(self, late: Any) -> None:
        self._late_decisions = late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._late_decisions, name)

    def copy_of(self, key: str, group: str, place: int) -> None:
        return None


def redelivering(*arguments: Any) -> Any:
    """A broker that forgets at once what was committed after expiry: each repeat is one more message, as with the original."""
    broker = Broker(*arguments)
    late = broker.transactions.decisions._late_decisions
    committed = late.committed
    late.committed = lambda copy: committed(copy) and None  # type: ignore[method-assign]
    return broker


def relenting(*arguments: Any) -> Any:
    """A broker that does not remember a rollback that came after expiry."""
    broker = Broker(*arguments)
    late = broker.transactions.decisions._late_decisions
    committed = late.committed
    late.committed = lambda copy: committed(copy) or None  # type: ignore[method-assign]
    return broker


def parallel(*arguments: Any) -> Any:
    """A broker that commits what expired although it was resumed: both become visible."""
    broker = Broker(*arguments)
    broker.transactions.decisions._late_decisions.successor = lambda copy: None  # type: ignore[method-assign]
    return broker


def obliging(*arguments: Any) -> Any:
    """A broker that agrees to a late commit and stores nothing."""
    broker = Broker(*arguments)
    decisions = broker.transactions.decisions
    decisions._end_late = lambda completion, copy, now: None  # type: ignore[method-assign]
    return broker


def complaisant(*arguments: Any) -> Any:
    """A broker that agrees to a rollback by hand of what expired, whatever became of it since."""
    broker = Broker(*arguments)
    pending = broker.transactions.pending
    pending._became = lambda half: (half.state == State.COMMITTED, State(half.state).name)  # type: ignore[method-assign]
    return broker
