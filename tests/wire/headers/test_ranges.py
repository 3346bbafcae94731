"""Requests for ranges of a queue, and bodies of the one that weighs them, as they travel."""

from __future__ import annotations

from halfmoon.wire.headers.ranges import ReadRange, ReadRangeReply, Stretch, Stretches, Weights
from halfmoon.wire.json import from_json, to_json
from tests.wire.headers.fields import required, sent


def test_a_range_is_named_by_its_queue_and_its_ends():
    assert required(ReadRange) == "topic queueId begin end maxBytes"
    header = ReadRange(topic="orders", queue_id=1, begin=5, end=9, max_bytes=100)
    assert sent(header) == {"topic": "orders", "queueId": "1", "begin": "5", "end": "9", "maxBytes": "100"}
    assert required(ReadRangeReply) == "nextBeginOffset minOffset maxOffset count"


def test_ranges_are_weighed_in_one_request():
    assert to_json(Stretches([Stretch(1, 5, 9)])) == b'{"stretches":[{"begin":5,"end":9,"queueId":1}]}'
    assert from_json(Weights, b'{"partBytes":[[1,2],[]]}') == Weights([[1, 2], []])
