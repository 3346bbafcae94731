"""Properties as they are stored: what a send brought, checked and completed. Keeps bounded caches of what was read before.

Each function gives None for what asks for more than storing, or is unusual: a group of one then goes through the general decoder.
"""

from __future__ import annotations

from collections.abc import Mapping

from halfmoon.errors import MessageIllegal

_CACHE_MAX = 4096
_CACHED_BYTES_MAX = 512
"""Longest text that a cache keeps: properties may have 32 KiB, and 4096 of those would fill the memory."""

_hashes: dict[bytes, int] = {}


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return properties as they travel and are stored, with a separator after the last pair too.

    A pair with an empty name or value is left out, for no reader sees it.

    Raises:
        MessageIllegal: a name or value contains a separator (0x01 or 0x02), or is not text that UTF-8 can hold.

    Follows MessageDecoder.messageProperties2String (RocketMQ 4.7.1 and 5.3.3).
    Differs: 4.9.8 drops the last separator, on which other versions then fail when they append.
    """
    pairs = [name + "\x01" + value + "\x02" for name, value in properties.items() if name and value]
    text = "".join(pairs)
    if text.count("\x01") != len(pairs) or text.count("\x02") != len(pairs):
        raise MessageIllegal("a property contains a separator (0x01 or 0x02)")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MessageIllegal("a property contains half of a surrogate pair") from None


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
# First five bytes of a pair.
_LOOKED_AT = frozenset({_WAIT, _TAGS, b"DELAY", b"TRAN_", b"TIMER", b"CLUST", b"INNER", b"__STA", b"MSG_R", b"TRACE"})


def stored_properties(text: bytes, suffix: bytes) -> tuple[bytes, int, bool] | None:
    """Prepare properties for storing: WAIT goes out, ``suffix`` (whole pairs, the last 0x02 included) comes in at the end.

    Returns (properties with a trailing 0x02, tag code, whether the sender waits for the sync), or None when a property asks for
    more than storing (a delay, a transaction, a timer) or is one that the broker gives, or the text is not UTF-8: then the general
    decoder must look at it.
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
    pairs.append(suffix)
    return b"\x02".join(pairs), code, wait


# ---------------------------------------------------------------- half messages

_UNUSUAL = (
    b"DELAY", b"TIMER_", b"REAL_", b"CLUSTER", b"INNER_", b"CHECK_", b"TRAN_P", b"TRANSACTION_", b"__STARTD", b"MSG_REGION",
    b"TRACE_ON",
)  # fmt: skip
_OF_GROUPS = b"%|-_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_UNIQUE = b"UNIQ_KEY\x01"
_UNREAD: tuple[int, bool, str] = (0, False, "")
_shapes: dict[bytes, tuple[int, bool, str] | None] = {}


def half_properties(text: bytes, suffix: bytes) -> tuple[bytes, int, bool, str] | None:
    """Prepare the properties of an ordinary half message: ``suffix`` (whole pairs that say where it belongs) comes in at the end.

    Returns (properties, tag code, whether the sender waits for the sync, producer group). The messages of one producer differ in
    UNIQ_KEY alone: what is around its value is looked up as a *shape* that was read once.
    """
    if not text.isascii():
        return None
    at = text.find(_UNIQUE)
    begin = at + len(_UNIQUE)
    end = text.find(b"\x02", begin)
    if end < 0:
        end = len(text)
    if at < 0 or (at and text[at - 1] != 2) or end == begin or text.find(b"\x01", begin, end) >= 0:
        shape = _read_shape(text)
    else:
        key = text[:begin] + text[end:]
        shape = _shapes.get(key, _UNREAD)
        if shape is _UNREAD:
            shape = _read_shape(text[:begin] + b"x" + text[end:])
            if len(key) <= _CACHED_BYTES_MAX:
                if len(_shapes) >= _CACHE_MAX:
                    _shapes.clear()
                _shapes[key] = shape
    if shape is None:
        return None
    code, wait, group = shape
    return text + suffix if text[-1] == 2 else text + b"\x02" + suffix, code, wait, group


def _read_shape(text: bytes) -> tuple[int, bool, str] | None:
    """Return tag code, whether the sender waits, and the group of ordinary properties; None for any others."""
    if _value(text, b"\x02TRAN_MSG\x01") != b"true":
        return None
    for name in _UNUSUAL:
        if name in text:
            return None
    group = _value(text, b"\x02PGROUP\x01")
    if not group or len(group) > 255 or group.translate(None, _OF_GROUPS):
        return None
    if text.count(b"\x01") != text.count(b"\x02") + (text[-1] != 2):  # a pair with two values, or with none
        return None
    tag = _value(text, b"\x02TAGS\x01")
    if tag == b"":
        return None
    wait = _value(text, b"\x02WAIT\x01")
    return tag_hash(tag) if tag else 0, not wait or wait.lower() == b"true", group.decode()


def _value(text: bytes, mark: bytes) -> bytes | None:
    """Return the value behind ``0x02 name 0x01``, the last of that name; None when it is missing."""
    at = text.rfind(mark)
    if at < 0:
        if not text.startswith(mark[1:]):
            return None
        at = -1
    begin = at + len(mark)
    end = text.find(b"\x02", begin)
    return text[begin:] if end < 0 else text[begin:end]
