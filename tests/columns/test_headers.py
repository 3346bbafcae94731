"""Headers that come by the thousand: the usual ones are read, and anything else is left to the general decoder."""

from __future__ import annotations

import pytest

from halfmoon.columns.headers import end_header_json, pull_header_json, send_header_json, send_header_rocketmq
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.send import SendMessageV2


def send_frame(serialization: int) -> bytes:
    header = SendMessageV2(
        producer_group="P", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=3, sys_flag=0,
        born_timestamp=1_700_000_000_000, flag=7, properties="KEYS\x01k\x02", reconsume_times=0, unit_mode=False, batch=False,
    )  # fmt: skip
    command = request_command(header, b"", opaque=5, serialization=serialization)
    command.code = 310
    return encode(command)


FIELDS = (5, 0, "T", 3, 0, 1_700_000_000_000, 7, b"KEYS\x01k\x02", 0, False)


def test_a_send_is_read_from_either_serialisation():
    assert send_header_json(send_frame(JSON)[8:]) == FIELDS
    frame = send_frame(ROCKETMQ)
    assert send_header_rocketmq(frame, 8, len(frame)) == FIELDS
    assert send_header_rocketmq(frame, 8, len(frame)) == FIELDS, "the shape is known now"


@pytest.mark.parametrize("damage", [(b'"b":"T"', b'"b":7.5'), (b'"e":"3"', b'"e":"x"'), (b'"opaque":5', b'"opaque":"five"')])
def test_a_header_with_a_field_that_cannot_be_is_left_to_the_decoder(damage: tuple[bytes, bytes]):
    header = send_frame(JSON)[8:]
    assert damage[0] in header
    assert send_header_json(header.replace(*damage)) is None
    assert pull_header_json(header) is None
    assert end_header_json(header) is None
