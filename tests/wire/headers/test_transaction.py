"""Requests of transactions, as they travel."""

from __future__ import annotations

from halfmoon.wire.headers import transaction
from tests.wire.headers.fields import required, sent


def test_a_decision_names_the_half_message_by_both_of_its_offsets():
    assert required(transaction.EndTransaction) == "producerGroup tranStateTableOffset commitLogOffset commitOrRollback msgId"
    header = transaction.EndTransaction(
        producer_group="P", tran_state_table_offset=3, commit_log_offset=2**33, commit_or_rollback=8, msg_id="AC11",
        from_transaction_check=True, transaction_id="AC11",
    )  # fmt: skip
    assert sent(header) == {
        "producerGroup": "P", "tranStateTableOffset": "3", "commitLogOffset": str(2**33), "commitOrRollback": "8",
        "msgId": "AC11", "fromTransactionCheck": "true", "transactionId": "AC11",
    }  # fmt: skip


def test_a_check_names_it_in_the_same_way():
    assert required(transaction.CheckTransactionState) == "tranStateTableOffset commitLogOffset"


def test_a_decision_by_hand_says_who_decided():
    assert required(transaction.DecideTransaction) == "commit operator"
    assert sent(transaction.DecideTransaction(commit=True, operator="anna", offset=3)) == {
        "commit": "true", "operator": "anna", "offset": "3",
    }  # fmt: skip
