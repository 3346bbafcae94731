"""Requests of a turn: sends and decisions come first, unless they stand behind another request of their connection."""

from __future__ import annotations

import pytest

from halfmoon.broker.send.sorting import sort, split
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

    assert sort(given, {310}, {11}, requests, pulls) == [given[0], given[2], given[4]]
    assert (requests, pulls) == ([given[3], given[5]], [given[1]])
    assert sort([given[0]], {310}, {11}, requests, pulls) == [], "a request of an earlier turn still waits"


def test_a_header_that_does_not_begin_with_its_code_is_left_to_the_decoder():
    peer, data, frame = asked(Peer(1, "10.0.0.1:1", 0), send_header("T"), JSON)
    odd = (peer, data[:8] + b'{ "code":' + data[16:], frame)
    requests = []

    assert sort([odd], {310}, {11}, requests, []) == []
    assert requests == [odd]


def test_sends_at_the_begin_of_what_a_connection_brought_do_not_count_in_its_share():
    first, second, third = Peer(1, "10.0.0.1:1", 0), Peer(2, "10.0.0.2:1", 0), Peer(3, "10.0.0.3:1", 0)
    _, data, frame = asked(first, send_header("T"), JSON)
    other, other_data, other_frame = asked(second, GetMaxOffset(topic="T", queue_id=0), JSON)
    cut = [(first, data, [frame] * 5), (other, other_data, [other_frame]), (third, data, [frame])]

    assert split(cut, {310}, (), []) == ([(first, data, frame)] * 5 + [(third, data, frame)], [cut[1]])
    assert split(cut, {310}, {first}, [(third, data, frame)]) == ([], cut), "they would overtake what waits"
