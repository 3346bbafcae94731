"""Every promise holds where a turn handles one request of a connection and two of all, so that the others wait."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.wire.peer import Asked, RequestBacklog
from simulation.history import Workload, simulate
from simulation.messages import Messages
from simulation.order import Order
from simulation.polls import Polls
from simulation.redelivery import Redelivery
from simulation.transactions.transactions import Transactions

pytestmark = pytest.mark.slow
WORKLOADS = [Messages, Order, Polls, Redelivery, Transactions]
"""Those in which requests wait: in the others almost all are sends, which are carried out together."""


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.NAME)
def test_every_promise_holds_when_requests_wait(workload: type[Workload], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestBacklog, "requests_a_turn", 1)
    monkeypatch.setattr(RequestBacklog, "all_requests_a_turn", 2)
    waited: list[int] = []
    turn = RequestBacklog.turn

    def counted(backlog: RequestBacklog, cut: Any) -> list[Asked]:
        found = turn(backlog, cut)
        waited.append(len(backlog.waiting))
        return found

    monkeypatch.setattr(RequestBacklog, "turn", counted)
    for seed in range(1, 5):
        verdict = simulate(workload, seed)
        assert verdict.problems == [], verdict.summary()
    assert any(waited), "nobody had to wait"
