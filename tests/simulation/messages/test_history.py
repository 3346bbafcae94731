"""A history's verdict: what it counts, and that nothing which goes wrong is passed over."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from halfmoon.broker.broker import Broker
from halfmoon.testing.cluster import Cluster
from halfmoon.testing.host import Closed
from simulation.messages.history import called_silent, simulate


def test_a_verdict_says_what_happened_in_one_line() -> None:
    verdict = simulate(4, kinds=("lose",), flush="sync")
    assert verdict.summary().startswith("seed 4, messages: held; sync flush, ")
    assert verdict.summary().endswith("; lose")
    assert min(verdict.acknowledged, verdict.read, verdict.events) > 50
    assert verdict.virtual_ms > 5_000


def test_what_a_core_raises_is_a_problem() -> None:
    class Broken(Broker):
        def commit(self, now: int) -> None:
            raise ZeroDivisionError("of all things")

    verdict = simulate(4, kinds=(), make_broker=Broken)
    assert verdict.problems == ["raised: ZeroDivisionError: of all things"]


def test_an_error_that_is_logged_is_a_problem() -> None:
    def make(*arguments: Any) -> Broker:
        logging.getLogger("halfmoon.broker").error("something is %s", "wrong")
        return Broker(*arguments)

    assert any("logged: something is wrong" in problem for problem in simulate(4, kinds=(), make_broker=make).problems)


def test_a_user_who_hangs_is_a_problem() -> None:
    class Silent(Broker):
        def effects(self) -> list[Any]:
            super().effects()
            return []

    verdict = simulate(4, kinds=(), make_broker=Silent)
    assert verdict.problems


@pytest.mark.parametrize(
    ("heard_ms", "reason", "fine"),
    [
        (20_000 - 15_000, "no heartbeat", True),
        (20_000 - 14_000, "no heartbeat", True),  # the last heartbeat came up to a second before another request did
        (20_000 - 13_999, "no heartbeat", False),
        (20_000 - 14_999, "silent for 15000 ms", False),  # what any bytes end
        (19_999, "a bad frame", True),
    ],
)
def test_a_connection_may_be_called_silent_only_after_its_time(heard_ms: int, reason: str, fine: bool) -> None:
    cluster = Cluster(seed=1, brokers=1)
    cluster.brokers[0].host.closed.append(Closed(20_000, heard_ms, "10.0.2.4:30012", reason))
    assert (called_silent(cluster, 15_000, beat_ms=1_000) == []) is fine
