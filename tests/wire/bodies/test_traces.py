"""Trace records: the original's bytes, all its versions, and anything else that may lie in a trace topic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.wire.bodies.traces import ConsumeCode, TraceRecord, decode_traces, encode_traces

PUB = "Pub|1700000000000|DefaultRegion|pg1|TopicTest|0A0B0000|TagA|k1|127.0.0.1:10911|5|3|0|7F001000|true^"
BEFORE = "SubBefore|1700000000000|null|cg1|0C0D|0A0B0000|2|k1^"
AFTER = "SubAfter|0C0D|0A0B0000|7|false|k1|2|1700000000009|cg1^"
END = "EndTransaction|1700000000000|DefaultRegion|pg1|TopicTest|0A0B|TagA|k1|127.0.0.1:10911|2|0A0B|COMMIT_MESSAGE|true^"


def wire(text: str) -> str:
    return text.replace("|", "\x01").replace("^", "\x02")


PARSED = [
    TraceRecord(
        kind="Pub", at_ms=1700000000000, region="DefaultRegion", group="pg1", topic="TopicTest", msg_id="0A0B0000", tags="TagA",
        keys="k1", store_host="127.0.0.1:10911", size_bytes=5, cost_ms=3, offset_msg_id="7F001000",
    ),
    TraceRecord(kind="SubBefore", at_ms=1700000000000, group="cg1", request_id="0C0D", msg_id="0A0B0000", retries=2, keys="k1"),
    TraceRecord(
        kind="SubAfter", at_ms=1700000000009, group="cg1", request_id="0C0D", msg_id="0A0B0000", cost_ms=7, success=False,
        keys="k1", code=int(ConsumeCode.EXCEPTION),
    ),
    TraceRecord(
        kind="EndTransaction", at_ms=1700000000000, region="DefaultRegion", group="pg1", topic="TopicTest", msg_id="0A0B",
        tags="TagA", keys="k1", store_host="127.0.0.1:10911", message_kind=2, transaction_id="0A0B", state="COMMIT_MESSAGE",
        from_check=True,
    ),
]  # fmt: skip


@pytest.mark.mission("002-24")
def test_the_originals_records_are_read_and_written_byte_for_byte():
    text = wire(PUB + BEFORE + AFTER + END)

    assert decode_traces(text) == PARSED
    assert encode_traces(PARSED) == text


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("Pub|1|r|g|t|m|a|k|h|5|3|0|true^", "success", True),
        ("Pub|1|r|g|t|m|a|k|h|5|3|0|false^", "offset_msg_id", ""),
        ("Pub|1|r|g|t|m|a|k|h|5|3|0|o|false|10.0.0.9^", "client_host", "10.0.0.9"),
        ("SubAfter|q|m|7|true|k^", "code", 0),
        ("SubAfter|q|m|7|false|k^", "code", 4),
        ("SubAfter|q|m|7|true|k|1^", "code", 1),
        ("SubAfter|q|m|7|true|k|1|5|g", "group", "g"),
        ("Pub|x|r|g|t|m|a|k|h|-5|3|0|o|true^", "at_ms", -1),
    ],
)
def test_other_versions_have_other_numbers_of_fields(text, name, value):
    [record] = decode_traces(wire(text))

    assert getattr(record, name) == value


@pytest.mark.parametrize(
    "text", ["", "^^^", "Pub^", "Pub|1|2^", "SubBefore|1^", "Recall|1|r|g|t|m|true^", "nonsense", "null|null^"]
)
def test_what_is_no_record_is_left_out(text):
    assert decode_traces(wire(text)) == []


@given(st.text(alphabet=st.sampled_from("PubSAfterBEnd0179\x01\x02 null-é"), max_size=300))
def test_any_text_is_read(text):
    decode_traces(text)
    decode_traces("Pub\x01" + text)


@given(st.builds(lambda key, topic, at: TraceRecord(kind="Pub", at_ms=at, keys=key, topic=topic),
                 st.text(max_size=20), st.text(max_size=20), st.integers(0, 10**15)))  # fmt: skip
def test_a_separator_in_a_text_does_not_make_another_record(record):
    found = decode_traces(encode_traces([record, record]))

    assert len(found) == 2
    assert found[0].at_ms == record.at_ms


def test_the_records_of_one_body_are_bounded():
    assert len(decode_traces(wire(BEFORE) * 20_000)) == 10_000
