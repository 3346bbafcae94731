"""Ids and hosts: the offset message id, the sender's unique id, and hosts as records keep them.

Never reads a clock or the host's own addresses; both are arguments.

A host is ``| ip 4 or 16 bytes | port i32 |``, so 8 or 20 bytes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from itertools import count
from random import Random
from struct import Struct
from typing import NamedTuple

from halfmoon.errors import BadMessage, UsageError
from halfmoon.model import split_address

_PORT = Struct(">I")
_OFFSET = Struct(">q")


@lru_cache(4096)
def pack_host(address: str) -> bytes:
    """Return ``ip:port`` or ``[ip]:port`` as the 8 or 20 bytes of a record. Raises UsageError if it is not an IP address."""
    host, port = split_address(address)
    return pack_ip(host) + _PORT.pack(port)


@lru_cache(4096)
def pack_ip(host: str) -> bytes:
    """Return the 4 or 16 bytes of an IP address; a zone (``%eth0``) is dropped. Raises UsageError."""
    try:
        return ip_address(host.strip("[]").partition("%")[0]).packed
    except ValueError:
        raise UsageError(f"not an IP address: {host!r}") from None


@lru_cache(4096)
def host_text(host: bytes) -> str:
    """Return ``ip:port`` (``[ip]:port`` for IPv6) of 8 or 20 bytes. Raises BadMessage for another length."""
    if len(host) == 8:
        return f"{host[0]}.{host[1]}.{host[2]}.{host[3]}:{_PORT.unpack_from(host, 4)[0]}"
    if len(host) == 20:
        return f"[{IPv6Address(host[:16])}]:{_PORT.unpack_from(host, 16)[0]}"
    raise BadMessage(f"a host has 8 or 20 bytes, not {len(host)}")


# ---------------------------------------------------------------- the broker's id


class OffsetMsgId(NamedTuple):
    """Content of an offset message id: the broker's host (8 or 20 bytes) and the message's offset in its log."""

    host: bytes
    physical_offset: int

    @property
    def address(self) -> str:
        """The broker as ``ip:port``."""
        return host_text(self.host)


def offset_msg_id(host: bytes, physical_offset: int) -> str:
    """Return the id of the message at an offset of a broker: 32 (IPv4) or 56 (IPv6) upper-case hex digits."""
    return host_hex(host) + f"{physical_offset:016X}"


@lru_cache(4096)
def host_hex(host: bytes) -> str:
    """Return a host as the first digits of its offset message ids."""
    return host.hex().upper()


def parse_offset_msg_id(text: str) -> OffsetMsgId:
    """Return the content of an offset message id. A batch has several ids joined by commas: pass one of them.

    Raises:
        UsageError: not 32 or 56 hex digits, or a port or offset that cannot be.
    """
    try:
        data = bytes.fromhex(text) if len(text) in (32, 56) and text.isalnum() else b""
    except ValueError:
        data = b""
    if not data:
        raise UsageError(f"{text!r} is not a broker's message id, which has 32 or 56 hexadecimal digits")
    host, (offset,) = data[:-8], _OFFSET.unpack_from(data, len(data) - 8)
    if offset < 0 or not 0 < _PORT.unpack_from(host, len(host) - 4)[0] < 65536:
        raise UsageError(f"{text!r} is not a broker's message id, which has 32 or 56 hexadecimal digits")
    return OffsetMsgId(host, offset)


# ---------------------------------------------------------------- the sender's id

_HEX = tuple(f"{byte:02X}" for byte in range(256))
_UNIQUE = Struct(">HIIH")  # | pid u16 | random u32 | ms since the month began u32 | counter u16 |


class UniqueIds:
    """Generator of the senders' message ids (UNIQ_KEY): 32 (IPv4) or 56 (IPv6) upper-case hex digits.

    Layout: ``| ip 4 or 16 | pid u16 | random u32 | ms since the month began u32 | counter u16 |``. Brokers treat it as opaque.

    Follows MessageClientIDSetter (RocketMQ 4.9.8).
    Differs: the month is that of UTC, not of a local time zone; a clock that steps back gives 0, as in 5.x.
    """

    def __init__(self, ip: bytes, pid: int, random: Random) -> None:
        """``ip`` has 4 or 16 bytes, ``random`` tells apart processes with the same address and number."""
        if len(ip) not in (4, 16):
            raise UsageError("an IP address has 4 or 16 bytes")
        self._prefix = ip.hex().upper()
        self._pid, self._random = pid & 0xFFFF, random.getrandbits(32)
        self._counter = count()
        self._month_ms = self._next_month_ms = 0
        self._begin = (-1, "")  # what the ids of one millisecond begin with, in one step of the interpreter

    def next(self, now: int) -> str:
        """Return a new id; ``now`` is milliseconds since the epoch. 65,536 ids of one millisecond are different.

        Thread-safe: the counter changes in one step of the interpreter.
        """
        made_ms, begin = self._begin
        if now != made_ms:
            if now >= self._next_month_ms:
                self._month_ms, self._next_month_ms = _month(now)
            begin = self._prefix + _UNIQUE.pack(self._pid, self._random, max(0, now - self._month_ms), 0).hex().upper()[:-4]
            self._begin = now, begin
        number = next(self._counter)
        return f"{begin}{_HEX[number >> 8 & 0xFF]}{_HEX[number & 0xFF]}"


def _month(now: int) -> tuple[int, int]:
    day = datetime.fromtimestamp(now / 1000, UTC)
    begin = datetime(day.year, day.month, 1, tzinfo=UTC)
    end = datetime(day.year + day.month // 12, day.month % 12 + 1, 1, tzinfo=UTC)
    return int(begin.timestamp()) * 1000, int(end.timestamp()) * 1000
