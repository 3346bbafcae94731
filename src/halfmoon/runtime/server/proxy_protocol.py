"""Preamble in which a proxy names its client (PROXY protocol 1 and 2). Reads no socket, trusts no address by default.

Follows the PROXY protocol specification of HAProxy; RocketMQ 5 reads it on every connection (NettyRemotingServer.HandshakeHandler).
Differs: only from addresses that a setting names, as the sender of a preamble can claim any address.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from struct import Struct
from typing import NamedTuple

from halfmoon.errors import PeerError
from halfmoon.runtime.server.addresses import address_text

LINE = b"PROXY "
LINE_BYTES_MAX = 107
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
EXTENSIONS_BYTES_MAX = 4096
"""Longest addresses and extensions of version 2; the specification allows 65,535, and proxies send some hundred."""

_HEAD = Struct(">12sBBH")  # | signature | version 4 bits, command 4 bits | family 4 bits, transport 4 bits | bytes that follow |
_ADDRESSES = {0x11: (socket.AF_INET, Struct(">4s4sHH")), 0x21: (socket.AF_INET6, Struct(">16s16sHH"))}
"""Layout of source and target addresses and ports by family and transport (TCP over IPv4 and IPv6)."""


class BadPreamble(PeerError):
    """Malformed preamble."""


class Preamble(NamedTuple):
    """Preamble of ``size`` bytes that names the client ``source`` (``ip:port``); None: the proxy itself, or unknown."""

    size: int
    source: str | None


def preamble(data: bytes) -> Preamble | None:
    """Return the preamble at the begin of a connection; None: more bytes are needed. A ``size`` of 0: there is none.

    Raises:
        BadPreamble: it begins like a preamble and is malformed.
    """
    if data.startswith(LINE):
        return _line(data)
    if data.startswith(SIGNATURE):
        return _binary(data)
    if LINE.startswith(data) or SIGNATURE.startswith(data):
        return None
    return Preamble(0, None)


def _line(data: bytes) -> Preamble | None:
    """Parse version 1: ``PROXY TCP4 source target source-port target-port``, CR, LF."""
    end = data.find(b"\r\n", 0, LINE_BYTES_MAX)
    if end < 0:
        if len(data) >= LINE_BYTES_MAX:
            raise BadPreamble("PROXY protocol 1: a line that does not end")
        return None
    words = data[:end].split(b" ")
    if words[1] == b"UNKNOWN":
        return Preamble(end + 2, None)
    try:
        _, kind, source, target, port, target_port = (word.decode("ascii") for word in words)
        version = {"TCP4": 4, "TCP6": 6}[kind]
        addresses = [ip_address(text) for text in (source, target)]
        ports = [int(text) for text in (port, target_port) if text.isdigit()]
    except (ValueError, KeyError):
        raise BadPreamble(f"PROXY protocol 1: {data[:end]!r}") from None
    if {address.version for address in addresses} != {version} or len(ports) != 2 or max(ports) > 65535 or "%" in source:
        raise BadPreamble(f"PROXY protocol 1: {data[:end]!r}")
    client = getattr(addresses[0], "ipv4_mapped", None) or addresses[0]  # as text it differs between versions of Python
    return Preamble(end + 2, address_text((str(client), ports[0])))


def _binary(data: bytes) -> Preamble | None:
    """Parse version 2: a head of 16 bytes, addresses, extensions."""
    if len(data) < _HEAD.size:
        return None
    _, version, family, size = _HEAD.unpack_from(data)
    command = version & 0x0F
    if version >> 4 != 2 or command > 1:
        raise BadPreamble(f"PROXY protocol 2: version and command {version:#x}")
    if size > EXTENSIONS_BYTES_MAX:
        raise BadPreamble(f"PROXY protocol 2: {size} bytes, {EXTENSIONS_BYTES_MAX} at most")
    if len(data) < _HEAD.size + size:
        return None
    known = _ADDRESSES.get(family) if command else None
    if known is None:  # a health check of the proxy, or not TCP
        return Preamble(_HEAD.size + size, None)
    kind, layout = known
    if size < layout.size:
        raise BadPreamble(f"PROXY protocol 2: {size} bytes where two addresses need {layout.size}")
    source, _, port, _ = layout.unpack_from(data, _HEAD.size)
    return Preamble(_HEAD.size + size, address_text((socket.inet_ntop(kind, source), port)))
