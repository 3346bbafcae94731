"""Headers of the requests that come by the thousand: sends, pulls, ends of transactions. Bytes in, plain values out.

Each function gives None for anything unusual: the general decoder must look at it. Keeps a bounded cache of shapes of headers.
"""

from __future__ import annotations

from struct import Struct
from typing import Annotated

import msgspec

from halfmoon.conversion import json_decoder

_HEAD = Struct(">iiii")  # behind code, language and version: | opaque i32 | flag i32 | remark length i32 | ext length i32 |
_CACHE_MAX = 4096
_CACHED_BYTES_MAX = 512
"""Longest text that the cache keeps: a header may have a megabyte, and 4096 of those would fill the memory."""

SendHeader = tuple[int, int, str, int, int, int, int, bytes, int, bool]
"""opaque, flag, topic, queue id, sys flag, born ms, user flag, properties, reconsume times, is a batch."""

_I32Number = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_I64Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Send(msgspec.Struct, gc=False):
    b: str
    e: _I32Number
    f: _I32Number
    g: _I64Number
    h: _I32Number
    i: str = ""
    j: _I32Number = 0
    m: bool = False
    a: str = ""  # nobody looks at these, but the general decoder refuses what they cannot be
    c: str = ""
    d: _I32Number = 0
    k: bool = False
    limit: _I32Number = msgspec.field(default=0, name="l")
    n: str = ""


class _SendEnvelope(msgspec.Struct, gc=False):
    extFields: _Send
    opaque: _I32Number
    flag: int = 0


_send_json = json_decoder(_SendEnvelope, strict=False).decode


def send_header_json(header: bytes) -> SendHeader | None:
    """Read the JSON header of SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE; None: the general decoder must look at it."""
    try:
        head = _send_json(header)
        if not header.isascii():
            header.decode()  # fields that are not used are not looked into, and the general decoder refuses what is not UTF-8
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    x = head.extFields
    return head.opaque, head.flag, x.b, x.e, x.f, x.g, x.h, x.i.encode(), x.j, x.m


_guess = (0, 0)
_shapes: dict[tuple[bytes, bytes, bytes], tuple[str, int, int, int, int, bool] | None] = {}
_BORN = b"\0\1g\0\0\0\r"  # field g with 13 digits, as every time between 2001 and 2286 has
_PROPERTIES = b"\0\1i"


def send_header_rocketmq(data: bytes, start: int, end: int) -> SendHeader | None:
    """Read the ROCKETMQ header of SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE; None: the general decoder must look at it.

    All fields but the born time and the properties repeat from message to message: the bytes before, between and behind these
    two are looked up as a *shape* that was parsed whole once. The cache is emptied when it is full.
    """
    global _guess
    opaque, flag, remark_size, ext_size = _HEAD.unpack_from(data, start + 5)
    ext = start + 21
    if remark_size or ext + ext_size != end:
        return None
    before_g, before_i = _guess  # where they were in the header before: one sender's headers are alike
    g, i = ext + before_g, ext + before_i
    if data[g : g + 7] != _BORN or data[i : i + 3] != _PROPERTIES:
        g = data.find(_BORN, ext, end)
        i = data.find(_PROPERTIES, g + 20, end)
        if g < 0 or i < 0:
            return None
        _guess = (g - ext, i - ext)
    if i + 7 > end:
        return None
    behind = i + 7 + int.from_bytes(data[i + 3 : i + 7], "big")
    if behind > end:
        return None
    key = (data[ext:g], data[g + 20 : i], data[behind:end])
    shape = _shapes.get(key)
    if shape is None:
        shape = _learn_shape(key)
        if shape is None:
            return None
    born = data[g + 7 : g + 20]
    if not born.isdigit():
        return None
    topic, queue_id, sys_flag, user_flag, reconsume, batch = shape
    return opaque, flag, topic, queue_id, sys_flag, int(born), user_flag, data[i + 7 : behind], reconsume, batch


def _learn_shape(key: tuple[bytes, bytes, bytes]) -> tuple[str, int, int, int, int, bool] | None:
    fields: dict[bytes, bytes] = {}
    try:
        for pairs in key:
            if not _entries(pairs, fields):
                return None
        if b"g" in fields or b"i" in fields:
            return None
        shape = (
            fields[b"b"].decode(), _i32(fields[b"e"]), _i32(fields[b"f"]), _i32(fields[b"h"]), _i32(fields.get(b"j", b"0")),
            _TRUTHS[fields.get(b"m", b"false")],
        )  # fmt: skip
        # nobody looks at these, but the general decoder refuses what they cannot be
        _i32(fields.get(b"d", b"0")), _i32(fields.get(b"l", b"0")), _TRUTHS[fields.get(b"k", b"false")]
    except (KeyError, ValueError):
        return None
    if sum(map(len, key)) <= _CACHED_BYTES_MAX:
        if len(_shapes) >= _CACHE_MAX:
            _shapes.clear()
        _shapes[key] = shape
    return shape


_TRUTHS = {b"true": True, b"false": False}


def _i64(text: bytes) -> int:
    """Return a number as the general decoder reads it. Raises ValueError for anything else: blanks, underscores, 65 bits."""
    number = int(text)
    if not -(2**63) <= number < 2**63 or not (text[1:] if number < 0 else text).isdigit():
        raise ValueError(text)
    return number


def _i32(text: bytes) -> int:
    number = _i64(text)
    if not -(2**31) <= number < 2**31:
        raise ValueError(text)
    return number


def _entries(data: bytes, fields: dict[bytes, bytes]) -> bool:
    at, size = 0, len(data)
    while at < size:
        name_end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        value_end = name_end + 4 + int.from_bytes(data[name_end : name_end + 4], "big")
        if value_end > size or name_end + 4 > size or value_end < name_end:
            return False
        data[at + 2 : name_end].decode()  # the general decoder refuses names and values that are not UTF-8
        data[name_end + 4 : value_end].decode()
        if value_end > name_end + 4:
            fields[data[at + 2 : name_end]] = data[name_end + 4 : value_end]
        at = value_end
    return True


# ---------------------------------------------------------------- pulls


class PullHeader(msgspec.Struct, gc=False):
    """The fields of PULL_MESSAGE that a broker uses, under their wire names."""

    consumerGroup: str
    topic: str
    queueId: _I32Number
    queueOffset: _I64Number
    maxMsgNums: _I32Number
    sysFlag: _I32Number
    commitOffset: _I64Number
    suspendTimeoutMillis: _I64Number
    subVersion: _I64Number
    subscription: str | None = None
    expressionType: str | None = None
    topicBirthMs: _I64Number | None = None
    maxMsgBytes: _I32Number | None = None  # of 5.x, as the next
    requestSource: _I32Number | None = None


class _PullEnvelope(msgspec.Struct, gc=False):
    extFields: PullHeader
    opaque: _I32Number
    flag: int = 0


_pull_json = json_decoder(_PullEnvelope, strict=False).decode


def pull_header_json(header: bytes) -> tuple[int, int, PullHeader] | None:
    """Read the JSON header of PULL_MESSAGE as (opaque, flag, fields); None: the general decoder must look at it."""
    try:
        head = _pull_json(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return head.opaque, head.flag, head.extFields


# ---------------------------------------------------------------- ends of transactions


EndFields = tuple[int, int, str, int, int, int, str, bool]
"""opaque, flag, producer group, index and physical offset of the half message, 8 commit, 12 rollback or another number, the
message's id, whether a broker had asked."""


class _End(msgspec.Struct, gc=False):
    producerGroup: str
    tranStateTableOffset: _I64Number
    commitLogOffset: _I64Number
    commitOrRollback: _I32Number
    msgId: str
    fromTransactionCheck: bool = False
    stillOpen: bool = False  # where something is decided it says nothing, but must be one


class _EndEnvelope(msgspec.Struct, gc=False):
    extFields: _End
    opaque: _I32Number
    flag: int = 0


_end_json = json_decoder(_EndEnvelope, strict=False).decode


def end_header_json(header: bytes) -> EndFields | None:
    """Read the JSON header of END_TRANSACTION; None: the general decoder must look at it."""
    try:
        head = _end_json(header)
        if not header.isascii():
            header.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    x = head.extFields
    place = x.tranStateTableOffset, x.commitLogOffset
    return head.opaque, head.flag, x.producerGroup, *place, x.commitOrRollback, x.msgId, x.fromTransactionCheck


def end_header_rocketmq(data: bytes, start: int, end: int) -> EndFields | None:
    """Read the ROCKETMQ header of END_TRANSACTION; None: the general decoder must look at it."""
    opaque, flag, remark_size, ext_size = _HEAD.unpack_from(data, start + 5)
    fields: dict[bytes, bytes] = {}
    if remark_size or start + 21 + ext_size != end:
        return None
    try:
        if not _entries(data[start + 21 : end], fields):
            return None
        _TRUTHS[fields.get(b"stillOpen", b"false")]
        return (
            opaque, flag, fields[b"producerGroup"].decode(),
            _i64(fields[b"tranStateTableOffset"]), _i64(fields[b"commitLogOffset"]),
            _i32(fields[b"commitOrRollback"]), fields[b"msgId"].decode(), _TRUTHS[fields.get(b"fromTransactionCheck", b"false")],
        )  # fmt: skip
    except (KeyError, ValueError):
        return None


# ---------------------------------------------------------------- all fields


class _TextEnvelope(msgspec.Struct, gc=False):
    extFields: dict[str, str]


_text_json = json_decoder(_TextEnvelope).decode


def fields_json(header: bytes) -> dict[str, str] | None:
    """Return all fields of a JSON header that was read here; None: they are not all texts."""
    try:
        fields: dict[str, str] = _text_json(header).extFields
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return fields


def fields_rocketmq(data: bytes, start: int, end: int) -> dict[str, str] | None:
    """Return all fields of a ROCKETMQ header that was read here, but for empty ones; None: they are not all texts."""
    fields: dict[bytes, bytes] = {}
    try:
        if not _entries(data[start + 21 : end], fields):
            return None
    except UnicodeDecodeError:
        return None
    return {name.decode(): value.decode() for name, value in fields.items()}
