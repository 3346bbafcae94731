"""The hot functions in Python: the reference that any compiled twin must equal, bytes in and plain values out.

They cut a stream into frames, read the headers of sends and pulls, prepare properties for storing and write answers; those
for batches are in `halfmoon._hot_batch`. Each gives None (or fewer values) for anything unusual, and the plain road handles that:
these functions never decide, never refuse, keep nothing but bounded caches of text they have parsed before, and are used through
`halfmoon.hot`.
"""

from __future__ import annotations

from struct import Struct
from typing import Annotated

import msgspec

from halfmoon.conversion import json_decoder

_FRAME = Struct(">iI")  # | total i32 | serialisation u8, header length u24 |
_HEAD = Struct(">iiii")  # behind code, language and version: | opaque i32 | flag i32 | remark length i32 | ext length i32 |
_I16 = Struct(">h")
_I32 = Struct(">i")
_ROCKET_ANSWER = Struct(">hbhiiii")
_CACHE_MAX = 4096
_CACHED_BYTES_MAX = 512
"""Longest text that a cache keeps: a header may have a megabyte, and 4096 of those would fill the memory."""

SendHeader = tuple[int, int, str, int, int, int, int, bytes, int, bool]
"""opaque, flag, topic, queue id, sys flag, born ms, user flag, properties, reconsume times, is a batch."""


# ---------------------------------------------------------------- frames


def cut(data: bytes, frame_max: int, header_max: int) -> tuple[list[tuple[int, int, int, int]], int, int, str | None]:
    """Cut a run of bytes into whole frames.

    Returns the frames as (serialisation, start of header, start of body, end), how many bytes they take, how many bytes from
    there the next frame needs in all (8 until its length is known), and what is wrong with the next frame, if anything.
    """
    frames: list[tuple[int, int, int, int]] = []
    at, size = 0, len(data)
    unpack = _FRAME.unpack_from
    while size - at >= 8:
        total, mark = unpack(data, at)
        header_size = mark & 0xFFFFFF
        if total < 4 or total + 4 > frame_max:
            return frames, at, 8, f"frame length {total} is not between 4 and {frame_max - 4}"
        if header_size > total - 4 or header_size > header_max:
            return frames, at, 8, f"header length {header_size} does not fit a frame of {total} bytes"
        end = at + 4 + total
        if end > size:
            return frames, at, 4 + total, None
        body = at + 8 + header_size
        frames.append((mark >> 24, at + 8, body, end))
        at = end
    return frames, at, 8, None


# ---------------------------------------------------------------- send headers


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
    a: str = ""


class _SendEnvelope(msgspec.Struct, gc=False):
    extFields: _Send
    opaque: int
    flag: int = 0


_send_json = json_decoder(_SendEnvelope, strict=False).decode


def send_header_json(header: bytes) -> SendHeader | None:
    """Read the JSON header of SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE; None: the plain road must look at it."""
    try:
        head = _send_json(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    x = head.extFields
    return head.opaque, head.flag, x.b, x.e, x.f, x.g, x.h, x.i.encode(), x.j, x.m


_guess = (0, 0)
_shapes: dict[tuple[bytes, bytes, bytes], tuple[str, int, int, int, int, bool] | None] = {}
_BORN = b"\0\1g\0\0\0\r"  # field g with 13 digits, as every time between 2001 and 2286 has
_PROPERTIES = b"\0\1i"


def send_header_rocketmq(data: bytes, start: int, end: int) -> SendHeader | None:
    """Read the ROCKETMQ header of SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE; None: the plain road must look at it.

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
        for part in key:
            if not _entries(part, fields):
                return None
        if b"g" in fields or b"i" in fields:
            return None
        shape = (
            fields[b"b"].decode(), _i32(fields[b"e"]), _i32(fields[b"f"]), _i32(fields[b"h"]), _i32(fields.get(b"j", b"0")),
            fields.get(b"m", b"false").lower() == b"true",
        )  # fmt: skip
    except (KeyError, ValueError):
        return None
    if sum(map(len, key)) <= _CACHED_BYTES_MAX:
        if len(_shapes) >= _CACHE_MAX:
            _shapes.clear()
        _shapes[key] = shape
    return shape


def _i32(text: bytes) -> int:
    """Return a number as the plain road reads it. Raises ValueError for anything else: blanks, underscores, 33 bits."""
    number = int(text)
    if not -(2**31) <= number < 2**31 or not (text[1:] if number < 0 else text).isdigit():
        raise ValueError(text)
    return number


def _entries(data: bytes, fields: dict[bytes, bytes]) -> bool:
    at, size = 0, len(data)
    while at < size:
        name_end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        value_end = name_end + 4 + int.from_bytes(data[name_end : name_end + 4], "big")
        if value_end > size or name_end + 4 > size or value_end < name_end:
            return False
        data[at + 2 : name_end].decode()  # the plain road refuses names and values that are not UTF-8
        data[name_end + 4 : value_end].decode()
        if value_end > name_end + 4:
            fields[data[at + 2 : name_end]] = data[name_end + 4 : value_end]
        at = value_end
    return True


# ---------------------------------------------------------------- pull headers


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


class _PullEnvelope(msgspec.Struct, gc=False):
    extFields: PullHeader
    opaque: int
    flag: int = 0


_pull_json = json_decoder(_PullEnvelope, strict=False).decode


def pull_header_json(header: bytes) -> tuple[int, int, PullHeader] | None:
    """Read the JSON header of PULL_MESSAGE as (opaque, flag, fields); None: the plain road must look at it."""
    try:
        head = _pull_json(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return head.opaque, head.flag, head.extFields


# ---------------------------------------------------------------- properties and tags

_hashes: dict[bytes, int] = {}


def tag_hash(tag: bytes) -> int:
    """Return the tag code of a queue entry: Java's hash of the tag's text, signed; 0 for no tag."""
    code = _hashes.get(tag)
    if code is None:
        code = 0
        data = tag if tag.isascii() else tag.decode().encode("utf-16-be")
        if data is tag:
            for unit in data:
                code = code * 31 + unit & 0xFFFFFFFF
        else:
            for k in range(0, len(data), 2):
                code = code * 31 + (data[k] << 8 | data[k + 1]) & 0xFFFFFFFF
        if code & 0x80000000:
            code -= 0x100000000
        if len(tag) <= _CACHED_BYTES_MAX:
            if len(_hashes) >= _CACHE_MAX:
                _hashes.clear()
            _hashes[tag] = code
    return code


_WAIT, _TAGS, _WAITS = b"WAIT\x01", b"TAGS\x01", b"WAIT\x01true"
_LOOKED_AT = frozenset({_WAIT, _TAGS, b"DELAY", b"TRAN_", b"TIMER", b"CLUST", b"INNER"})  # first five bytes of a pair


def stored_properties(text: bytes, cluster: bytes) -> tuple[bytes, int, bool] | None:
    """Prepare properties for storing: WAIT goes out, ``cluster`` (a whole pair, its 0x02 included) comes in at the end.

    Returns (properties with a trailing 0x02, tag code, whether the sender waits for the sync), or None when a property asks for
    more than storing (a delay, a transaction, a timer) or the text is not UTF-8: then the plain road must look at it.
    """
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            return None
    pairs = text.split(b"\x02")
    if not pairs[-1]:
        del pairs[-1]
    wait, code, leaves = True, 0, None
    for pair in pairs:
        start = pair[:5]
        if start in _LOOKED_AT:
            if start == _WAIT:
                if leaves is not None:
                    return None
                leaves = pair
                wait = pair == _WAITS or pair[5:].lower() == b"true"
            elif start == _TAGS:
                code = tag_hash(pair[5:])
            else:
                return None
    if leaves is not None:
        pairs.remove(leaves)
    pairs.append(cluster)
    return b"\x02".join(pairs), code, wait


# ---------------------------------------------------------------- answers


def send_answer_form(
    region: str, host_hex: str, language: str, version: int, queue_id: int, serialization: int
) -> str | tuple[bytes, bytes]:
    """Return what `send_answer` fills in for one queue: everything of a SEND reply that does not change from message to message."""
    if serialization == 0:
        return (
            f'{{"code":0,"extFields":{{"queueId":"{queue_id}","TRACE_ON":"true","MSG_REGION":"{region}","msgId":"{host_hex}%016X",'
            f'"queueOffset":"%d"}},"flag":1,"language":"{language}","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":{version}}}'
        )
    constant = b"".join(
        _I16.pack(len(name)) + name.encode() + _I32.pack(len(value)) + value.encode()
        for name, value in (("queueId", str(queue_id)), ("TRACE_ON", "true"), ("MSG_REGION", region))
    )
    size = len(host_hex) + 16
    return constant + b"\0\5msgId" + _I32.pack(size) + host_hex.encode(), b"\0\x0bqueueOffset"


def send_answer(form: str | tuple[bytes, bytes], physical_offset: int, queue_offset: int, opaque: int, version: int) -> bytes:
    """Return the whole frame that answers one stored message."""
    if isinstance(form, str):
        head = (form % (physical_offset, queue_offset, opaque)).encode()
        return _FRAME.pack(4 + len(head), len(head)) + head
    before, name = form
    offset = b"%d" % queue_offset
    ext = len(before) + 16 + len(name) + 4 + len(offset)
    return b"%b%b%b%016X%b%b%b" % (
        _FRAME.pack(25 + ext, 1 << 24 | 21 + ext), _ROCKET_ANSWER.pack(0, 0, version, opaque, 1, 0, ext), before, physical_offset,
        name, _I32.pack(len(offset)), offset,
    )  # fmt: skip
