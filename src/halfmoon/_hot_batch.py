"""The hot functions for batches, in Python: expand a batch body, and answer a batch. See `halfmoon._hot`, whose rules hold here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

from halfmoon._hot import send_answer_form, stored_properties

_FRAME = Struct(">iI")
_I32 = Struct(">i")
_ROCKET_ANSWER = Struct(">hbhiiii")
_SUB = Struct(">iiiii")  # | size i32 | magic i32 | crc i32 | flag i32 | body length i32 |
_I16 = Struct(">h")


def batch_items(body: bytes) -> list[tuple[bytes, bytes, int]]:
    """Split a batch body into (body, properties, flag) of each message.

    Raises:
        ValueError: a length does not fit.
    """
    items = []
    at, size = 0, len(body)
    unpack, short = _SUB.unpack_from, _I16.unpack_from
    while at < size:
        if size - at < 22:
            raise ValueError(f"batch ends inside a message at byte {at}")
        total, _, _, flag, body_size = unpack(body, at)
        body_end = at + 20 + body_size
        if body_size < 0 or total < 22 + body_size or at + total > size:
            raise ValueError(f"message at byte {at} of the batch says {total} bytes with {body_size} of body")
        (properties_size,) = short(body, body_end)
        if properties_size < 0 or 22 + body_size + properties_size != total:
            raise ValueError(f"message at byte {at} of the batch says {properties_size} bytes of properties")
        items.append((body[at + 20 : body_end], body[body_end + 2 : at + total], flag))
        at += total
    return items


_ITEM = Struct(">i8xii")  # the same three that matter: | size i32 | flag i32 | body length i32 |
_UNIQUE = b"UNIQ_KEY\x01"

Draft = tuple[bytes, bytes, int, int, int, bytes, int, int, int]
"""What the store appends: body, properties, flag, sys flag, born ms, born host, reconsume times, prepared offset, tag code."""


def batch_drafts(
    body: bytes, suffix: bytes, sys_flag: int, born_ms: int, host: bytes, reconsume: int, count_max: int, properties_max: int
) -> list[Draft] | None:
    """Split a batch body into what the store appends; ``suffix`` are whole pairs that each message gets behind its own.

    None: lengths do not fit, there are too many messages or none, or one asks for more than storing: the plain road must look.
    """
    drafts: list[Draft] = []
    at, size, properties_max = 0, len(body), properties_max - len(suffix)
    unpack = _ITEM.unpack_from
    while at < size:
        if size - at < 22 or len(drafts) == count_max:
            return None
        total, flag, body_size = unpack(body, at)
        body_end, end = at + 20 + body_size, at + total
        if body_size < 0 or total < 22 + body_size or end > size or not 0 <= end - body_end - 2 < properties_max:
            return None
        if body[body_end] << 8 | body[body_end + 1] != end - body_end - 2:
            return None
        text = body[body_end + 2 : end]
        if text.startswith(_UNIQUE) and text.find(b"\x02") == len(text) - 1 and text.isascii():  # most have nothing else
            code = 0
            text += suffix
        else:
            prepared = stored_properties(text, suffix)
            if prepared is None:
                return None
            text, code, _ = prepared
        drafts.append((body[at + 20 : body_end], text, flag, sys_flag, born_ms, host, reconsume, 0, code))
        at = end
    return drafts or None


_ALIKE_MAX = 256
"""Messages of a batch that is read in one piece: bounds the layouts that are kept."""


@lru_cache(32)
def _alike_reader(count: int, body_size: int, front: int, key: int, back: int) -> Callable[[bytes], tuple[Any, ...]]:
    return Struct(">" + f"i8xii{body_size}sh{front}s{key}s{back}s" * count).unpack


def batch_alike(
    body: bytes, suffix: bytes, count_max: int, properties_max: int
) -> tuple[tuple[bytes, ...], tuple[bytes, ...], bytes, bytes, int, int] | None:
    """Read a batch whose messages have bodies of one length and properties that differ in the unique key only, in one piece.

    Returns (bodies, keys, front, back, flag, tag code): what is stored as a message's properties is front + key + back, ``suffix``
    included. None: they are not alike, or something is unusual: `batch_drafts` must look at it.
    """
    size = len(body)
    if size < 32:
        return None
    total, flag, body_size = _ITEM.unpack_from(body)
    properties_at = 22 + body_size
    if body_size < 0 or not properties_at <= total <= size or size % total:
        return None
    count, text, last = size // total, body[properties_at:total], size - total
    if not 1 < count <= min(_ALIKE_MAX, count_max) or body[12:20] != body[last + 12 : last + 20]:
        return None
    key_at = _key_at(text)
    key_end = text.find(b"\x02", key_at)
    prepared = stored_properties(text, suffix)
    if not key_at or key_end < 0 or prepared is None or len(prepared[0]) > properties_max:
        return None
    columns = _alike_reader(count, body_size, key_at, key_end - key_at, len(text) - key_end)(body)
    totals, flags, sizes, lengths, fronts, backs = (columns[k::8] for k in (0, 1, 2, 4, 5, 7))
    keys = columns[6::8]
    joined = b"".join(keys)
    if (
        totals.count(total) != count or flags.count(flag) != count or sizes.count(body_size) != count
        or lengths.count(len(text)) != count or fronts.count(text[:key_at]) != count or backs.count(text[key_end:]) != count
        or b"\x02" in joined or not joined.isascii()
    ):  # fmt: skip
        return None
    stored, code, _ = prepared
    front_end = _key_at(stored)
    return columns[3::8], keys, stored[:front_end], stored[front_end + key_end - key_at :], flag, code


def _key_at(text: bytes) -> int:
    """Return where the unique key's value begins, 0 for none."""
    return 9 if text.startswith(_UNIQUE) else text.find(b"\x02" + _UNIQUE) + 10 if b"\x02" + _UNIQUE in text else 0


def batch_answer_form(region: str, language: str, version: int, queue_id: int, serialization: int) -> str | tuple[bytes, bytes]:
    """Return what `batch_answer` fills in for one queue."""
    form = send_answer_form(region, "", language, version, queue_id, serialization)
    return form.replace("%016X", "%s") if isinstance(form, str) else (form[0][:-4], form[1])


def batch_answer(
    form: str | tuple[bytes, bytes], host_hex: str, physical_offsets: Sequence[int], queue_offset: int, opaque: int, version: int
) -> bytes:
    """Return the whole frame that answers one stored batch: with the ids of all its messages, joined by commas."""
    ids = Struct(f">{len(physical_offsets)}q").pack(*physical_offsets).hex(",", 8).upper().replace(",", "," + host_hex)
    if isinstance(form, str):
        head = (form % (host_hex + ids, queue_offset, opaque)).encode()
        return _FRAME.pack(4 + len(head), len(head)) + head
    before, name = form
    text, offset = (host_hex + ids).encode(), b"%d" % queue_offset
    ext = len(before) + 4 + len(text) + len(name) + 4 + len(offset)
    return b"".join((
        _FRAME.pack(25 + ext, 1 << 24 | 21 + ext), _ROCKET_ANSWER.pack(0, 0, version, opaque, 1, 0, ext), before,
        _I32.pack(len(text)), text, name, _I32.pack(len(offset)), offset,
    ))  # fmt: skip
