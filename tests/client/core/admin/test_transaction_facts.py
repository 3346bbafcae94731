"""What is told of a transaction."""

from __future__ import annotations

from halfmoon.client.core.admin.transaction_facts import TransactionAt
from halfmoon.wire.bodies.transactions import SentCheck


def test_the_last_answer_is_that_of_the_last_check_and_empty_before_the_first():
    transaction = TransactionAt()
    assert transaction.last_answer == ""

    transaction.checks += [SentCheck(1, "p1", "NONE"), SentCheck(2, "p2", "UNKNOWN")]

    assert transaction.last_answer == "UNKNOWN"


def test_no_two_transactions_share_what_is_not_told():
    TransactionAt().not_reported.append("checks")

    assert TransactionAt().not_reported == []
