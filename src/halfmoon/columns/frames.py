"""Frames: received bytes split into them, frames of requests, and the two serialisations of every header. Keeps nothing.

Layout of a frame (big endian): ``| total i32 | serialisation u8, header length u24 | header | body |``.

The total does not count itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

import msgspec

from halfmoon.columns.signing import Signer

PREFIX = Struct(">ii")  # | total i32 | serialisation u8, header length u24 |
_PREFIX = Struct(">iI")  # the same to read
_FIXED = Struct(">hbhiii")  # | code i16 | language i8 | version i16 | opaque i32 | flag i32 | remark length i32 |
_I16 = Struct(">h")
_I32 = Struct(">i")
_PYTHON = 3, "PYTHON"

Frame = tuple[int, int, int, int]
"""serialisation, start of header, start of body, end: positions in the bytes that were split."""


def split_frames(data: bytes, frame_max: int, header_max: int) -> tuple[list[Frame], int, int, str | None]:
    """Split received bytes into whole frames.

    Returns the frames as (serialisation, start of header, start of body, end), how many bytes they take, how many bytes from
    there the next frame needs in all (8 until its length is known), and what is wrong with the next frame, if anything.
    """
    frames: list[Frame] = []
    at, size = 0, len(data)
    unpack = _PREFIX.unpack_from
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


def request_frame(
    code: int, flag: int, opaque: int, version: int, names: Sequence[str], values: Sequence[Any], body: bytes, serialization: int,
    remark: str | None, signer: Signer | None = None,
) -> bytes:  # fmt: skip
    """Return the whole frame of a request of ours whose header has these fields; values are texts, numbers, booleans or None.

    Where there is a ``signer``, its fields follow them: they are not among the names.
    """
    fields, (language, language_name) = texts_of(names, values), _PYTHON
    if signer is not None:
        fields |= signer.sign(fields, body)
    if serialization:
        head = header_rocketmq(code, language, version, opaque, flag, remark, fields)
    else:
        head = header_json(code, fields, flag, language_name, opaque, remark, version)
    return b"".join((PREFIX.pack(4 + len(head) + len(body), serialization << 24 | len(head)), head, body))


def texts_of(names: Sequence[str], values: Sequence[Any]) -> dict[str, str]:
    """Return fields as they travel: text, None left out, booleans ``true`` and ``false``."""
    fields: dict[str, str] = {}
    for name, value in zip(names, values):
        if type(value) is str:
            fields[name] = value
        elif value is True or value is False:
            fields[name] = "true" if value else "false"
        elif value is not None:
            fields[name] = str(value)
    return fields


def header_json(
    code: int, fields: Mapping[str, str], flag: int, language: str, opaque: int, remark: str | None, version: int
) -> bytes:  # fmt: skip
    """Return a header in JSON."""
    head: dict[str, Any] = {"code": code}
    if fields:
        head["extFields"] = fields
    head["flag"] = flag
    head["language"] = language
    head["opaque"] = opaque
    if remark is not None:
        head["remark"] = remark
    head["serializeTypeCurrentRPC"] = "JSON"
    head["version"] = version
    return msgspec.json.encode(head)


def head_json(header: bytes, fields_max: int) -> tuple[int, int, int] | None:
    """Return code, flag and opaque of a header in JSON, or None where it must be decoded to be believed.

    The fields may be read when they are asked for. The result is what `halfmoon.wire.command.decode` would find, of headers as
    everybody writes them with at most ``fields_max`` fields. Here it is None always: looking at all of a header costs as much as
    decoding it.
    """
    return None


def header_rocketmq(
    code: int, language: int, version: int, opaque: int, flag: int, remark: str | None, fields: Mapping[str, str]
) -> bytes:  # fmt: skip
    """Return a header in RocketMQ's own serialisation. Codes above 32767 truncate, as in the original."""
    remark_bytes = remark.encode() if remark else b""
    pieces: list[bytes] = []
    for name, value in fields.items():
        n, v = name.encode(), value.encode()
        pieces += (_I16.pack(len(n)), n, _I32.pack(len(v)), v)
    ext = b"".join(pieces)
    code = (code + 0x8000 & 0xFFFF) - 0x8000
    return b"".join((_FIXED.pack(code, language, version, opaque, flag, len(remark_bytes)), remark_bytes, _I32.pack(len(ext)), ext))
