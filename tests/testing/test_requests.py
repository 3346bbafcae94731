"""Requests to a simulated broker: what they carry, and the messages of an answer."""

from __future__ import annotations

import pytest

from halfmoon.errors import BadMessage
from halfmoon.testing.cluster import Cluster
from halfmoon.testing.requests import messages_of, pull_request, send_request
from halfmoon.wire.command import Command


@pytest.mark.parametrize("long", [True, False])
def test_a_message_is_found_as_its_request_said(long: bool) -> None:
    cluster = Cluster(seed=1)
    address = cluster.brokers[0].address

    sent = cluster.call(send_request("orders", 1, "paid", "k1 k2", "unique", cluster.timeline.now, long=long), b"body")
    cluster.run(ms=50)
    assert sent.result().code == 0
    reply = cluster.request(address, pull_request("readers", "orders", 1, 0))
    ((message, record),) = messages_of(reply)

    assert (message.body, message.tag, message.keys, message.msg_id) == (b"body", "paid", ("k1", "k2"), "unique")
    assert len(record) == message.size_bytes


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(BadMessage):
        list(messages_of(Command(0, body=b"not a record")))
