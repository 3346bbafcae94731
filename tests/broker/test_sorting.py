"""Requests of a turn: sends and decisions come first, unless they stand behind another request of their connection."""

from __future__ import annotations

import pytest

from halfmoon.broker.sorting import sort
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.offset import GetMaxOffset
from halfmoon.wire.headers.pull import PullMessage
from halfmoon.wire.peer import Peer
from tests.broker.talk import pull_header, send_header


def asked(peer: Peer, header: object, serialization: int):
    data = encode(request_command(header, serialization=serialization))
    start = int.from_bytes(data[5:8], "big")
    return peer, data, (serialization, 8, 8 + start, len(data))


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_sends_overtake_others_but_not_those_of_their_connection(serialization: int):
    first, second = Peer(1, "10.0.0.1:1", 0), Peer(2, "10.0.0.2:1", 0)
    other, pull = GetMaxOffset(topic="T", queue_id=0), pull_header("T")
    assert isinstance(pull, PullMessage)
    given = [asked(peer, header, serialization) for peer, header in
             ((first, send_header("T")), (first, pull), (first, send_header("T")), (first, other), (second, send_header("T")),
              (first, send_header("T")))]  # fmt: skip
    requests, pulls = [], []

    assert sort(given, {310}, requests, pulls) == [given[0], given[2], given[4]]
    assert (requests, pulls) == ([given[3], given[5]], [given[1]])
    assert sort([given[0]], {310}, requests, pulls) == [], "a request of an earlier turn still waits"


def test_a_header_that_does_not_begin_with_its_code_is_left_to_the_decoder():
    peer, data, frame = asked(Peer(1, "10.0.0.1:1", 0), send_header("T"), JSON)
    odd = (peer, data[:8] + b'{ "code":' + data[16:], frame)
    requests = []

    assert sort([odd], {310}, requests, []) == []
    assert requests == [odd]
