"""Requests about offsets, as they travel."""

from __future__ import annotations

from halfmoon.wire.headers import offset
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset, SearchOffsetByTimestamp, UpdateConsumerOffset
from halfmoon.wire.table import request_type
from tests.wire.headers.fields import required, sent


def test_progress_is_stored_with_everything_that_names_it():
    assert required(UpdateConsumerOffset) == "consumerGroup topic queueId commitOffset"
    header = UpdateConsumerOffset(consumer_group="C", topic="orders", queue_id=1, commit_offset=2**40)
    assert sent(header) == {"consumerGroup": "C", "topic": "orders", "queueId": "1", "commitOffset": str(2**40)}


def test_progress_may_be_asked_for_without_a_group():
    assert required(QueryConsumerOffset) == "topic queueId"
    assert sent(QueryConsumerOffset(topic="orders", queue_id=1))["consumerGroup"] == ""


def test_an_offset_is_looked_for_by_time():
    assert required(SearchOffsetByTimestamp) == "topic queueId timestamp"


def test_whoever_asks_for_an_offset_gets_one():
    for asked in (QueryConsumerOffset, SearchOffsetByTimestamp, offset.GetMaxOffset, offset.GetMinOffset):
        assert request_type(asked).reply is OffsetReply
    assert required(OffsetReply) == "offset"
    assert required(offset.GetEarliestMsgStoretimeReply) == "timestamp"


def test_progress_is_compared_and_cloned_by_group():
    assert required(offset.QueryCorrectionOffset) == "topic"
    header = offset.CloneGroupOffset(src_group="A", dest_group="B", topic="orders", offline=True)
    assert sent(header) == {"srcGroup": "A", "destGroup": "B", "topic": "orders", "offline": "true"}
    assert required(offset.CloneGroupOffset) == ""
