"""Records of leases: checks of what is written and read, and the parts that people look at. Pure functions."""

from __future__ import annotations

import msgspec

from halfmoon.errors import LeaseUnavailable
from halfmoon.limits import LEASE_RECORD_BYTES_MAX
from halfmoon.ports import Stored

_LINE_LENGTH_MAX = 200


def checked(text: bytes) -> str:
    """Return a record that is to be written as text. Raises ValueError: it is too long, no UTF-8, or has a NUL."""
    if len(text) > LEASE_RECORD_BYTES_MAX:
        raise ValueError(f"the record of a lease has {len(text)} bytes, of at most {LEASE_RECORD_BYTES_MAX}")
    if b"\0" in text:
        raise ValueError("the record of a lease has a NUL")
    return text.decode()


def stored(text: bytes, version: str, address: str) -> Stored:
    """Return a record that was read. Raises LeaseUnavailable: it is too long to be one."""
    if len(text) > LEASE_RECORD_BYTES_MAX:
        raise LeaseUnavailable(f"{address}: the record has {len(text)} bytes, of at most {LEASE_RECORD_BYTES_MAX}", address)
    return Stored(text, version)


def holder_and_epoch(text: bytes) -> tuple[str | None, int | None]:
    """Return the members ``holder``, a text, and ``epoch``, a number from 0 to 2**31 - 1, of a record; None for what it has not."""
    try:
        record = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None, None
    members = record if isinstance(record, dict) else {}
    holder, epoch = members.get("holder"), members.get("epoch")
    is_number = isinstance(epoch, int) and not isinstance(epoch, bool) and 0 <= epoch < 2**31
    return holder if isinstance(holder, str) and holder else None, epoch if is_number else None


def line(said: str) -> str:
    """Return what another system said as part of one line of a log: printable, and cut off."""
    text = " ".join("".join(one if one.isprintable() else " " for one in said[: 4 * _LINE_LENGTH_MAX]).split())
    return text if len(text) <= _LINE_LENGTH_MAX else text[:_LINE_LENGTH_MAX] + "..."
