"""Preambles of both versions, whole, in pieces and wrong."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.errors import PeerError
from halfmoon.runtime.server.proxy_protocol import (
    EXTENSIONS_BYTES_MAX,
    LINE_BYTES_MAX,
    SIGNATURE,
    BadPreamble,
    Preamble,
    preamble,
)


def binary(command: int, family: int, payload: bytes) -> bytes:
    return SIGNATURE + struct.pack(">BBH", 0x20 | command, family, len(payload)) + payload


V4 = socket.inet_aton("203.0.113.7") + socket.inet_aton("10.0.0.1") + struct.pack(">HH", 4711, 10911)
V6 = socket.inet_pton(socket.AF_INET6, "2001:db8::7") + bytes(16) + struct.pack(">HH", 4711, 10911)
GOOD = [
    (b"PROXY TCP4 203.0.113.7 10.0.0.1 4711 10911\r\n", "203.0.113.7:4711"),
    (b"PROXY TCP6 2001:db8::7 ::1 4711 10911\r\n", "[2001:db8::7]:4711"),
    (b"PROXY TCP6 ::ffff:203.0.113.7 ::ffff:10.0.0.1 4711 10911\r\n", "203.0.113.7:4711"),  # a proxy that listens for both
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN whatever a proxy adds\r\n", None),
    (binary(1, 0x11, V4), "203.0.113.7:4711"),
    (binary(1, 0x11, V4 + b"\x04\x00\x02ab"), "203.0.113.7:4711"),  # with an extension
    (binary(1, 0x21, V6), "[2001:db8::7]:4711"),
    (binary(1, 0x21, bytes(10) + b"\xff\xff" + V4[:4] + bytes(16) + V4[8:]), "203.0.113.7:4711"),
    (binary(0, 0x00, b""), None),  # LOCAL: a check of the proxy's own
    (binary(0, 0x11, V4), None),
    (binary(1, 0x12, V4), None),  # UDP
    (binary(1, 0x31, bytes(216)), None),  # a socket of Unix
]


@pytest.mark.parametrize(("data", "source"), GOOD)
def test_a_preamble_says_who_connects_once_it_is_whole(data: bytes, source: str | None) -> None:
    for size in range(len(data)):
        assert preamble(data[:size]) is None
    assert preamble(data) == preamble(data + b"\x00\x00\x01\x00") == Preamble(len(data), source)


@pytest.mark.parametrize(
    "data", [b"\x00\x00\x00\x50", b"\x16\x03\x01", b"PRI * HTTP/2.0", b"GET / HTTP/1.1", b"\r\n\r\n\x00\r\nQUAT"]
)
def test_what_begins_otherwise_has_no_preamble(data: bytes) -> None:
    assert preamble(data) == Preamble(0, None)


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 203.0.113.7 10.0.0.1 4711\r\n",
        b"PROXY TCP4 2001:db8::7 ::1 4711 10911\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 4711 70000\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 -1 10911\r\n",
        b"PROXY TCP4  203.0.113.7 10.0.0.1 4711 10911\r\n",
        b"PROXY TCP6 fe80::1%eth0 ::1 4711 10911\r\n",
        b"PROXY UDP4 203.0.113.7 10.0.0.1 4711 10911\r\n",
        b"PROXY TCP4 m\xc3\xb6.example 10.0.0.1 4711 10911\r\n",
        b"PROXY " + b"x" * LINE_BYTES_MAX,
        binary(1, 0x11, V4[:-1]),
        binary(2, 0x11, V4),
        SIGNATURE + b"\x11\x11\x00\x0c" + V4,
        binary(1, 0x11, V4 + bytes(EXTENSIONS_BYTES_MAX)),
    ],
)
def test_a_malformed_preamble_is_refused(data: bytes) -> None:
    with pytest.raises(BadPreamble, match="PROXY protocol") as refused:
        preamble(data)
    assert str(refused.value).isprintable()


@given(st.sampled_from([b"PROXY TCP4 ", b"PROXY ", SIGNATURE, SIGNATURE + b"\x21\x11"]), st.binary(max_size=200))
def test_no_bytes_are_an_error_of_ours(beginning: bytes, rest: bytes) -> None:
    try:
        found = preamble(beginning + rest)
    except PeerError:
        return
    assert found is None or 0 < found.size <= len(beginning + rest)
