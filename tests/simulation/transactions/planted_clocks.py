"""Brokers with a fault planted into what their transactions make of a clock that is set. Each breaks one promise."""

from __future__ import annotations

from typing import Any

from halfmoon.broker.broker import Broker


def clockwise_rounds(*arguments: Any) -> Any:
    """A broker whose rounds of checks come when the clock says so, also when it was set meanwhile."""
    broker = Broker(*arguments)
    broker.transactions.checks.stepped = lambda by_ms: None  # type: ignore[method-assign]
    return broker


def dated(*arguments: Any) -> Any:
    """A broker that looks for what was resumed up to what its clock shows now, which may have been set back."""
    broker = Broker(*arguments)
    store = broker.store
    query = store.query
    store.query = lambda topic, key, count, begin_ms, end_ms: query(  # type: ignore[method-assign]
        topic, key, count, begin_ms, store._now
    )
    return broker


def oblivious(*arguments: Any) -> Any:
    """A broker that forgets after each round which time it did not live through."""
    broker = Broker(*arguments)
    checks, uptime = broker.transactions.checks, broker.transactions.uptime
    on_round = checks.on_round

    def ended(now: int) -> None:
        uptime.forget()
        on_round(now)

    checks.on_round = ended
    return broker
