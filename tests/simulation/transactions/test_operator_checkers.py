"""What operators are shown is judged by what the broker agreed to before."""

from __future__ import annotations

import pytest

from simulation.ledger import FoundFault, Ledger
from simulation.transactions.ledger import DecisionRecord, Shown, TxLedger
from simulation.transactions.log import HalfRecord, TxLog
from simulation.transactions.operator_checkers import shown_as_it_is


@pytest.mark.parametrize(
    ("flush", "faults", "fine"),
    [
        ("async", [("power", 2_000), ("start", 2_500)], True),
        ("async", [("power", 500), ("start", 800)], False),
        ("async", [("kill", 2_000), ("start", 2_500)], False),
        ("sync", [("power", 2_000), ("start", 2_500)], False),
        ("async", [], False),
    ],
)
def test_what_was_agreed_to_is_pending_again_only_if_power_took_it(flush: str, faults: list[tuple[str, int]], fine: bool) -> None:
    ledger = TxLedger(Ledger(flush), 15, 1_000, 1_000, 500)
    ledger.messages.faults += [FoundFault(at_ms, "broker-a", kind) for kind, at_ms in faults]
    ledger.decisions.append(DecisionRecord(1_900, 1_901, "broker-a", 7, "order", True, 0))
    ledger.shown.append(Shown(3_000, 3_001, "broker-a", 7, "order", "PREPARED"))
    log = TxLog(halves={7: HalfRecord(0, 100, 7, "order", "P_shop", "orders", 0, b"", 1_000, False)})

    assert (shown_as_it_is(ledger, {"broker-a": log}) == []) is fine
