"""Batch bodies: ``| size i32 | 0 | 0 | flag i32 | body length i32 | body | properties length i16 | properties |`` each message."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as struct_error

from halfmoon.columns.properties import stored_properties
from halfmoon.errors import MessageIllegal
from halfmoon.limits import PROPERTIES_BYTES_MAX

Draft = tuple[bytes, bytes, int, int, int, bytes, int, int, int]
"""A message as it is stored: body, properties, flag, sys flag, born ms, born host, reconsume times, prepared offset, tag code."""

BATCH_MAX = 30_000
"""Messages of one batch: its answer names each by 32 letters and a comma in a header, which ends at `HEADER_BYTES_MAX`."""

_I16 = Struct(">h")
_ITEM = Struct(">i8xii")  # | size i32 | magic i32 = 0 | crc i32 = 0 | flag i32 | body length i32 |
ITEM_BYTES_MIN = 22


def encode_batch(items: Iterable[tuple[bytes, bytes, int]]) -> bytes:
    """Return the body of a batch of (body, properties, flag).

    Raises:
        MessageIllegal: properties over 32,767 bytes, or a number that does not fit.
    """
    pieces: list[bytes] = []
    for body, properties, flag in items:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise MessageIllegal(f"the properties have {len(properties)} bytes, more than {PROPERTIES_BYTES_MAX}")
        try:
            head = _ITEM.pack(ITEM_BYTES_MIN + len(body) + len(properties), flag, len(body))
        except struct_error:
            raise MessageIllegal("a number of the message is out of range") from None
        pieces += (head, body, _I16.pack(len(properties)), properties)
    return b"".join(pieces)


def batch_items(body: bytes) -> list[tuple[bytes, bytes, int]]:
    """Split a batch body into (body, properties, flag) of each message.

    Raises:
        ValueError: a length does not fit.
    """
    items = []
    at, size = 0, len(body)
    unpack = _ITEM.unpack_from
    while at < size:
        if size - at < ITEM_BYTES_MIN:
            raise ValueError(f"batch ends inside a message at byte {at}")
        total, flag, body_size = unpack(body, at)
        text, end = at + ITEM_BYTES_MIN + body_size, at + total
        if body_size < 0 or not text <= end <= size:
            raise ValueError(f"message at byte {at} of the batch says {total} bytes with {body_size} of body")
        properties_size = body[text - 2] << 8 | body[text - 1]
        if text + properties_size != end or properties_size > 0x7FFF:
            raise ValueError(f"message at byte {at} of the batch says {properties_size} bytes of properties")
        items.append((body[at + 20 : text - 2], body[text:end], flag))
        at = end
    return items


def batch_drafts(
    body: bytes, suffix: bytes, sys_flag: int, born_ms: int, host: bytes, reconsume: int, properties_max: int
) -> list[Draft] | None:
    """Split a batch body into what is stored; ``suffix`` are whole pairs that each message gets behind its own.

    None: lengths do not fit, there are too many messages or none, or one asks for more than storing.
    """
    try:
        items = batch_items(body)
    except ValueError:
        return None
    if not 1 <= len(items) <= BATCH_MAX:
        return None
    drafts: list[Draft] = []
    for item, text, flag in items:
        prepared = stored_properties(text, suffix)
        if prepared is None or len(prepared[0]) > properties_max:
            return None
        drafts.append((item, prepared[0], flag, sys_flag, born_ms, host, reconsume, 0, prepared[1]))
    return drafts
