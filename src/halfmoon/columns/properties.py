"""Properties as they are stored: what a send brought, checked and completed. Keeps nothing but hashes of tags."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from halfmoon.errors import MessageIllegal
from halfmoon.model import java_hash


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


@lru_cache(256)  # tags may have 32 KiB
def tag_hash(tag: bytes) -> int:
    """Return the tag code of a queue entry: Java's hash of the tag's text, signed; 0 for no tag."""
    return java_hash(tag.decode())


_WAIT, _TAGS, _WAITS = b"WAIT\x01", b"TAGS\x01", b"WAIT\x01true"
# First five bytes of a pair.
_LOOKED_AT = frozenset({_WAIT, _TAGS, b"DELAY", b"TRAN_", b"TIMER", b"CLUST", b"INNER", b"__STA", b"MSG_R", b"TRACE"})


def stored_properties(text: bytes, suffix: bytes) -> tuple[bytes, int, bool] | None:
    """Prepare properties for storing: WAIT goes out, ``suffix`` (whole pairs, the last 0x02 included) comes in at the end.

    Returns (properties with a trailing 0x02, tag code, whether the sender waits for the sync), or None when a property asks for
    more than storing (a delay, a transaction, a timer) or is one that the broker gives, or the text is not UTF-8: then it must be
    decoded.
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
