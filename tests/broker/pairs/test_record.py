"""The record of a lease reads back as it was written; what is none, another's or of a later version is refused with a reason."""

from __future__ import annotations

import msgspec
import pytest

from halfmoon.broker.pairs.record import LeaseRecord, LeaseRefused, decode_record, encode_record
from halfmoon.limits import LEASE_RECORD_BYTES_MAX

RECORD = LeaseRecord(broker="c/b", epoch=3, holder="me", address="1.2.3.4:5", in_sync=("me", "you"), lease_ms=6000, renewal=7)


def changed(**values: object) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(RECORD) | values)


def test_a_record_reads_back_as_it_was_written() -> None:
    assert decode_record(encode_record(RECORD), "c/b") == RECORD


def test_fields_that_are_not_known_are_left_out() -> None:
    assert decode_record(changed(note="by hand"), "c/b") == RECORD


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{}", b"[]", b"\xff", b"[" * 50_000, b" " * LEASE_RECORD_BYTES_MAX + encode_record(RECORD), changed(epoch=0),
        changed(epoch=2**62), changed(lease_ms=0), changed(holder=""), changed(holder="you", in_sync=["me"]),
        changed(in_sync=["me", "you", "they"]), changed(in_sync="me"), changed(format="1"),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(text: bytes) -> None:
    with pytest.raises(LeaseRefused, match="damaged"):
        decode_record(text, "c/b")


def test_a_record_of_a_later_version_is_left_alone_whatever_else_it_says() -> None:
    with pytest.raises(LeaseRefused, match="format 2, and this version knows 1"):
        decode_record(b'{"format":2,"holders":[]}', "c/b")


def test_the_record_of_another_broker_is_refused() -> None:
    with pytest.raises(LeaseRefused, match="of broker 'c/other', not of 'c/b'"):
        decode_record(changed(broker="c/other"), "c/b")
