"""Brokers with a planted fault: what a function changes in a broker that was just made, as a maker of brokers for `Cluster`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from halfmoon.broker.broker import Broker


def faulty_broker(plant: Callable[[Any], None]) -> Callable[..., Any]:
    """Return a maker of brokers into each of which ``plant`` puts its fault."""

    @wraps(plant)
    def make(*arguments: Any) -> Any:
        broker = Broker(*arguments)
        plant(broker)
        return broker

    return make
