"""Strangers at the port are named by what they seem to speak."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.effects import Close
from halfmoon.logs import LINES_A_MINUTE
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import request_bytes
from halfmoon.wire.headers.offset import GetMaxOffset
from halfmoon.wire.peer import Peers, spoken

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)
KNOCKS = {
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": "HTTP/2, as gRPC clients do",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n": "HTTP/1: 'GET /metrics HTTP/1.1'",
    b"POST / HTTP/1.0\r\n\r\n": "HTTP/1: 'POST / HTTP/1.0'",
    HELLO: "TLS, which is off here",
    b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n": "the PROXY protocol, which is not expected",
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c": "the PROXY protocol, which is not expected",
    b"SSH-2.0-OpenSSH_9.2\r\n": "SSH",
}


@pytest.mark.parametrize("knock", KNOCKS)
def test_who_speaks_something_else_is_named_with_what_is_spoken_here(knock: bytes, caplog: pytest.LogCaptureFixture) -> None:
    peers = Peers()
    peers.connected(1, "10.0.0.9:4711", 0)
    peers.feed(1, knock)
    assert peers.take(1) == []
    (close,) = peers.effects()
    assert isinstance(close, Close)
    assert KNOCKS[knock] in close.reason
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"connection closed: peer=10.0.0.9:4711 speaks {KNOCKS[knock]}")
    assert "RocketMQ's remoting protocol is spoken here" in line


def test_a_request_line_is_cut_and_its_control_characters_are_escaped() -> None:
    named = spoken(b"GET /\x1b[31m" + b"a" * 1000 + b" HTTP/1.1\r\n")
    assert named is not None
    assert named.isprintable()
    assert len(named) < 100


def test_many_knocks_are_counted_and_not_all_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="halfmoon.wire")
    peers = Peers()
    for number in range(LINES_A_MINUTE + 7):
        peers.connected(number, "10.0.0.9:4711", 0)
        peers.feed(number, b"GET / HTTP/1.1\r\n\r\n")
    peers.take(0)
    assert len(caplog.records) == LINES_A_MINUTE
    peers.tick(70_000)
    assert caplog.records[-1].getMessage() == "suppressed 7 more warnings in the last minute"


@given(st.binary(max_size=64))
def test_noise_has_no_name_and_no_error(data: bytes) -> None:
    if not data.startswith((b"\x16\x03", b"GET ")):
        assert spoken(data) is None or data[:4] in (b"PUT ", b"PRI ", b"HEAD", b"POST", b"PROX", b"\r\n\r\n", b"SSH-")


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_no_frame_of_ours_is_taken_for_a_knock(serialization: int) -> None:
    assert spoken(request_bytes(GetMaxOffset(topic="t", queue_id=3), b"GET / HTTP/1.1", 1, serialization)) is None
