"""Bodies about transactions: their JSON has the names that the page on the protocol promises."""

from __future__ import annotations

from halfmoon.wire.bodies import GroupTransactions, PendingTransactions, SentCheck, Transaction, TransactionStats
from halfmoon.wire.json import from_json, to_json


def test_a_pending_transaction_is_listed_with_its_checks() -> None:
    half = Transaction(index=3, msg_id="AC11", group="P", checks=[SentCheck(5, "a1", "UNKNOWN")])
    text = to_json(PendingTransactions(now_ms=9, pending_count=1, transactions=[half]))
    assert text.startswith(b'{"next":-1,"nowMs":9,"pendingCount":1,"transactions":[{"bornMs":0,"checks":[{"answer":"UNKNOWN",')
    assert b'"commitLogOffset":0' in text
    assert b'"state":"PREPARED"' in text
    assert from_json(PendingTransactions, text).transactions == [half]


def test_figures_are_by_group_and_by_name() -> None:
    stats = TransactionStats(groups=[GroupTransactions("P", 2, 17, 1)], counters={"commits": 4}, per_second={"P": {"half": 0.5}})
    assert b'"groups":[{"group":"P","oldestMs":17,"pending":2,"producers":1}]' in to_json(stats)
    assert from_json(TransactionStats, to_json(stats)) == stats
