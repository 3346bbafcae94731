"""Tests of the protocol table's machinery: parsing, missing and wrong fields, and what a header class becomes on the wire."""

from __future__ import annotations

import pytest

from halfmoon.errors import BadHeader
from halfmoon.wire.headers.offset import QueryConsumerOffset
from halfmoon.wire.headers.pull import PullMessage, QueryMessage
from halfmoon.wire.headers.send import SendBatchMessage, SendMessage, SendMessageV2
from halfmoon.wire.table import REQUESTS, Header, NoFields, fields_of, parse, request, request_type, wire

FIELDS = {"consumerGroup": "g", "topic": "t", "queueId": "3"}


def test_a_wire_name_is_the_attribute_in_camel_case_unless_given():
    class Example(Header):
        plain_name: str
        given: str = wire("OddNAME")

    assert fields_of(Example(plain_name="a", given="b")) == {"plainName": "a", "OddNAME": "b"}


def test_fields_become_typed_values_and_text_again():
    header = parse(QueryConsumerOffset, FIELDS)

    assert header == QueryConsumerOffset(consumer_group="g", topic="t", queue_id=3)
    assert fields_of(header) == FIELDS


def test_fields_that_a_header_does_not_declare_are_read_over():
    assert parse(QueryConsumerOffset, {**FIELDS, "bname": "b", "ns": "x", "lo": "false"}).queue_id == 3


def test_none_is_left_out_and_booleans_are_words():
    assert fields_of(QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0, set_zero_if_not_found=False)) == {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": "0",
        "setZeroIfNotFound": "false",
    }


@pytest.mark.parametrize("missing", ["topic", "queueId"])
def test_a_missing_required_field_is_refused_by_name(missing):
    with pytest.raises(BadHeader, match=missing):
        parse(QueryConsumerOffset, {name: value for name, value in FIELDS.items() if name != missing})


@pytest.mark.parametrize("value", ["", " 1", "one", "0x1", "1_0", "null", "2147483648", "-2147483649", "9" * 5000, "true", "١"])
def test_a_number_that_is_none_or_does_not_fit_is_refused(value):
    with pytest.raises(BadHeader, match="queueId"):
        parse(QueryConsumerOffset, {**FIELDS, "queueId": value})


@pytest.mark.parametrize("value", ["2147483647", "-2147483648", "0", "-1"])
def test_a_number_that_fits_is_taken(value):
    assert parse(QueryConsumerOffset, {**FIELDS, "queueId": value}).queue_id == int(value)


@pytest.mark.parametrize(("value", "found"), [("true", True), ("TRUE", True), ("false", False), ("False", False)])
def test_a_boolean_is_read_in_any_case(value, found):
    assert parse(QueryConsumerOffset, {**FIELDS, "setZeroIfNotFound": value}).set_zero_if_not_found is found


def test_a_topic_named_null_is_a_topic():
    assert parse(QueryConsumerOffset, {**FIELDS, "topic": "null"}).topic == "null"


def test_long_and_short_names_of_a_send_mean_the_same():
    long, short = SendMessage.__struct_fields__, SendMessageV2.__struct_fields__

    assert long == short
    assert [*SendMessageV2.__struct_encode_fields__] == [*"abcdefghijklmn"]
    assert SendBatchMessage.__struct_encode_fields__ == SendMessageV2.__struct_encode_fields__


def test_the_names_of_a_pull_are_the_wire_s():
    assert PullMessage.__struct_encode_fields__[:9] == (
        "consumerGroup",
        "topic",
        "queueId",
        "queueOffset",
        "maxMsgNums",
        "sysFlag",
        "commitOffset",
        "suspendTimeoutMillis",
        "subVersion",
    )
    assert "proxyFrowardClientId" in PullMessage.__struct_encode_fields__
    assert "_UNIQUE_KEY_QUERY" in QueryMessage.__struct_encode_fields__


def test_a_line_of_the_table_is_found_by_header_class_and_value():
    line = REQUESTS[14]

    assert (line.code, line.name, line.header) == (14, "QUERY_CONSUMER_OFFSET", QueryConsumerOffset)
    assert request_type(QueryConsumerOffset) is line
    assert request_type(parse(QueryConsumerOffset, FIELDS)) is line


def test_two_requests_with_one_code_are_refused():
    with pytest.raises(AssertionError, match="two requests with code 14"):
        request(14, "AGAIN")(NoFields)


def test_the_topic_that_a_send_is_permitted_for_is_a_field_and_a_decision_has_none():
    fields = {code: REQUESTS[code].published_field for code in (10, 310, 320, 325, 37)}

    assert fields == {10: "topic", 310: "b", 320: "b", 325: "b", 37: ""}
