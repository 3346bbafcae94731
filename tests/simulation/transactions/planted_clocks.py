"""Brokers with a fault planted into what their transactions make of a clock that is set. Each breaks one promise."""

from __future__ import annotations

from typing import Any

from tests.simulation.faulty import faulty_broker
from tests.simulation.planted_times import misled


@faulty_broker
def clockwise_rounds(broker: Any) -> None:
    """A broker whose rounds of checks come when the clock says so, also when it was set meanwhile."""
    checks = broker.transactions.checks
    checks.tick = misled(checks.tick)


@faulty_broker
def dated(broker: Any) -> None:
    """A broker that looks for what was resumed up to what its clock shows now, which may have been set back."""
    store = broker.store
    query = store.query
    store.query = lambda topic, key, count, begin_ms, end_ms, **more: query(  # type: ignore[method-assign]
        topic, key, count, begin_ms, store._date, **more
    )


@faulty_broker
def oblivious(broker: Any) -> None:
    """A broker that forgets after each round which time it did not live through."""
    checks, uptime = broker.transactions.checks, broker.transactions.uptime
    on_round = checks.on_round

    def ended() -> None:
        uptime.forget()
        on_round()

    checks.on_round = ended
