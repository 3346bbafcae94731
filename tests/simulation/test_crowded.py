"""Every promise holds where a turn handles one request of a connection and two of all, so that the others wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halfmoon.wire import peer
from halfmoon.wire.peer import Asked, RequestBacklog
from simulation.messages.history import simulate
from simulation.order.history import simulate_order
from simulation.polls.history import simulate_polls
from simulation.redelivery.history import simulate_redelivery
from simulation.transactions.history import simulate_transactions

pytestmark = pytest.mark.slow
HISTORIES = [simulate, simulate_order, simulate_polls, simulate_redelivery, simulate_transactions]
"""Those in which requests wait: in the others almost all are sends, which are carried out together."""


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_every_promise_holds_when_requests_wait(history: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "REQUESTS_A_TURN", 1)
    monkeypatch.setattr(peer, "ALL_REQUESTS_A_TURN", 2)
    waited: list[int] = []
    turn = RequestBacklog.turn

    def counted(backlog: RequestBacklog, cut: Any) -> list[Asked]:
        found = turn(backlog, cut)
        waited.append(len(backlog.waiting))
        return found

    monkeypatch.setattr(RequestBacklog, "turn", counted)
    for seed in range(1, 5):
        verdict = history(seed)
        assert verdict.problems == [], verdict.summary()
    assert any(waited), "nobody had to wait"
