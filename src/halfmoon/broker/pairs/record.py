"""`LeaseRecord`: who is the master of a pair, in which epoch, and who else has all that was acknowledged. Values only.

It is kept as JSON by another system (`halfmoon.ports.LeaseStore`), which replaces it only as a whole and only if nobody else has
replaced it before.
"""

from __future__ import annotations

import msgspec

from halfmoon.conversion import json_decoder
from halfmoon.errors import HalfmoonError
from halfmoon.limits import LEASE_RECORD_BYTES_MAX

FORMAT = 1
"""Version of the record. A broker leaves a record of a later one alone."""


class LeaseRefused(HalfmoonError):
    """The record of the lease cannot be used by this broker; the text says why and what to do."""


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record. Members are ids of data directories (`halfmoon.store.epochs`), 32 hexadecimal digits each."""

    format: int = FORMAT
    broker: str
    """Cluster and name of the broker, ``cluster/name``."""
    epoch: int
    """Grows with every change of the master."""
    holder: str
    """The member that is the master."""
    address: str
    """Where clients, and the other member, reach the master: ``host:port``. Empty: it was released, and the holder may take it."""
    in_sync: tuple[str, ...]
    """Members that have everything that was acknowledged: the only ones that may become the master."""
    lease_ms: int
    """Time for which the master may serve after it last wrote the record."""
    renewal: int = 0
    """Grows with every record that is written."""


def encode_record(record: LeaseRecord) -> bytes:
    """Return a record as JSON."""
    return msgspec.json.encode(record)


def decode_record(text: bytes, broker: str) -> LeaseRecord:
    """Return the record of a broker, ``cluster/name``. Raises LeaseRefused for what is none, another's, or of a later version."""
    try:
        if len(text) > LEASE_RECORD_BYTES_MAX:
            raise ValueError(f"it has {len(text)} bytes")
        known: _Format = _format_of.decode(text)
        if known.format != FORMAT:
            raise LeaseRefused(f"the record of the lease has format {known.format}, and this version knows {FORMAT}: update it")
        record: LeaseRecord = _record_of.decode(text)
        if not (0 < record.epoch < 2**62 and record.lease_ms > 0 and record.holder and len(record.in_sync) <= 2):
            raise ValueError("its numbers make no sense")
        if record.holder not in record.in_sync:
            raise ValueError("its holder is not in sync")
    except (ValueError, msgspec.MsgspecError, RecursionError) as exc:
        reason = f"the record of the lease is damaged: {exc}. Stop both brokers, remove it, start the last master"
        raise LeaseRefused(reason) from None
    if record.broker != broker:
        raise LeaseRefused(f"the record of the lease is of broker {record.broker!r}, not of {broker!r}: give each pair its own")
    return record


class _Format(msgspec.Struct):
    format: int


_format_of, _record_of = json_decoder(_Format), json_decoder(LeaseRecord)
