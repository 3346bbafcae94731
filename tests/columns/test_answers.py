"""Replies that most requests get, with both twins: whole frames that the decoder of the wire reads."""

from __future__ import annotations

import pytest

from halfmoon.columns.answers import answer_form, ids_of, send_answer
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import decode


@pytest.mark.parametrize("trace_on", [True, False])
@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_the_answer_to_a_send_names_id_queue_offset_region_and_trace_switch(serialization: int, trace_on: bool):
    frame = send_answer(answer_form("100%", 1, 3, serialization, trace_on=trace_on), "AA", 9, 77, 1)
    reply = decode(frame[8:], b"", frame[4])
    assert (reply.code, reply.opaque, reply.fields["msgId"], reply.fields["queueId"]) == (0, 77, "AA", "3")
    assert (reply.fields["queueOffset"], reply.fields["MSG_REGION"]) == ("9", "100%")
    assert reply.fields["TRACE_ON"] == ("true" if trace_on else "false")


def test_done_is_a_frame_without_fields(twin):
    for serialization in (JSON, ROCKETMQ):
        [(peer, frame)] = twin.done_answers([(4, 8, serialization)], 1)
        reply = decode(frame[8:], b"", frame[4])
        assert (peer, reply.code, reply.opaque, reply.fields) == (4, 0, 8, {})


def test_the_ids_of_a_batch_are_joined_by_commas():
    assert ids_of("0A", [1, 255]) == "0A0000000000000001,0A00000000000000FF"
