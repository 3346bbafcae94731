"""`halfmoon dlq report`: dead letters by group, topic and reason, whatever numbers the reasons have."""

from __future__ import annotations

from halfmoon.cli.dlq.report import DeadLetterReason, reasons_of
from halfmoon.model import DeadLetter, StoredMessage


def letter(reason: str, at: int, *, group: str = "C_mail", tries: int = 1) -> DeadLetter:
    properties = {"RETRY_TOPIC": "orders", **({"RECONSUME_REASON": reason} if reason else {})}
    place = (f"%DLQ%{group}", 0, 0, 0)
    message = StoredMessage(*place, b"12345", properties, 0, 0, 0, "10.0.0.1:1", at, "10.0.0.2:1", tries, 0, 0, 100, "id")
    return DeadLetter(group, message, "127.0.0.1:1")


LETTERS = [
    letter("order 17: no bank", 10, tries=3),
    letter("order 18: no bank", 30, tries=16),
    letter("", 20),
    letter("x", 5, group="C_bill"),
]


def test_the_report_counts_by_group_source_and_reason_whatever_numbers_the_reasons_have():
    size = LETTERS[0].message.held_bytes

    assert reasons_of(LETTERS) == [
        DeadLetterReason("C_mail", "orders", "order N: no bank", 2, 19, 2 * size, 10, 30, "order 17: no bank"),
        DeadLetterReason("C_bill", "orders", "x", 1, 1, size, 5, 5, "x"),
        DeadLetterReason("C_mail", "orders", "not reported", 1, 1, size, 20, 20, ""),
    ]


def test_reasons_beyond_a_bound_count_as_one():
    assert [(one.reason, one.count) for one in reasons_of(LETTERS, 1)] == [("other reasons", 2), ("order N: no bank", 2)]
