"""Replies to sends: ids of batches, refusals, and one-way requests."""

import pytest

from halfmoon.broker.request import Request
from halfmoon.errors import SystemBusy
from halfmoon.wire.command import Command


def test_the_ids_of_a_batch_are_joined_by_commas(talk):
    header = talk.broker.sends.replies.header(2, 40, [256, 512])
    host = talk.broker.context.host.hex().upper()
    assert header.msg_id == f"{host}{256:016X},{host}{512:016X}"
    assert (header.queue_id, header.queue_offset) == (2, 40)


@pytest.mark.parametrize("trace_on", [True, False])
def test_a_refusal_says_region_and_trace_and_a_oneway_request_gets_none(make_talk, trace_on):
    talk = make_talk(trace_on=trace_on)
    talk.connect(1)
    peer = talk.broker.peers.get(1)
    for opaque, flag in ((5, 0), (6, 2)):
        command = Command(310, flag, opaque, 0, 409, None, {}, b"", 0)
        talk.broker.sends.replies.refuse_one(Request(command, peer, talk.now), SystemBusy("full"))
    talk.run_effects()

    reply = talk.answer(5)
    assert (reply.code, reply.remark) == (2, "full")
    assert reply.fields == {"MSG_REGION": talk.settings.region, "TRACE_ON": "true" if trace_on else "false"}
    assert talk.answer(6) is None
