"""Compressed bodies: zlib built in, lz4 and zstd if their packages are installed. The decompressed size is bounded.

Brokers never compress or decompress; senders and consumers do.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import Any

from halfmoon.errors import BadMessage, UsageError
from halfmoon.limits import FRAME_BYTES_MAX
from halfmoon.wire.codes import COMPRESSED, COMPRESSION_MASK, LZ4, ZLIB, ZSTD

INFLATED_BYTES_MAX = 4 * FRAME_BYTES_MAX
"""Largest body after decompression. Senders bound bodies before compression, so their own stay far below."""

ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
"""Largest window of a zstd frame. Every decoder should support this much (RFC 8878, 3.1.1.1.2)."""

Buffer = bytes | bytearray | memoryview


def compress(body: Buffer, kind: int = ZLIB, level: int = 5) -> bytes:
    """Return the body in the format of ``kind`` (`ZLIB`, `LZ4` or `ZSTD` of `halfmoon.wire.codes`).

    The sender sets ``COMPRESSED | kind`` in the sysFlag, as 4.9 and 5.x do (0x301 for zlib).

    Raises:
        UsageError: unknown kind, a level out of range, or the package of an optional kind is missing.
    """
    try:
        if kind == ZLIB:
            return zlib.compress(body, level)
        if kind == LZ4:
            return bytes(_optional("lz4.frame").compress(bytes(body), compression_level=level))
        if kind == ZSTD:
            return bytes(_optional("zstandard").ZstdCompressor(level=level).compress(bytes(body)))
    except (zlib.error, ValueError, RuntimeError) as exc:
        raise UsageError(f"cannot compress with level {level}: {exc}") from None
    raise UsageError(f"unknown compression type {kind:#x}")


def decompress(body: bytes, sys_flag: int, size_max: int = INFLATED_BYTES_MAX) -> bytes:
    """Return the body as it was before compression; the same body if ``sys_flag`` does not mark it as compressed.

    No type with the compressed bit is zlib, as 4.7.1 writes it. The caller clears bit 0 afterwards and keeps the type.

    Raises:
        BadMessage: the bytes are damaged or cut short, the type is unknown, or more than ``size_max`` bytes would come out.
        UsageError: the package of an optional type is missing.
    """
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & COMPRESSION_MASK
    if kind in (0, ZLIB):
        return inflate(body, size_max)
    if kind == LZ4:
        return _decompress_lz4(body, size_max)
    if kind == ZSTD:
        return _decompress_zstd(body, size_max)
    raise BadMessage(f"unknown compression type {kind:#x}")


def beginning(body: bytes, sys_flag: int, size_max: int) -> bytes:
    """Return the first ``size_max`` bytes of a body before compression; of the stored bytes, if they cannot be decompressed.

    Decompresses no more than it returns, plus at most one block: 4 MiB of LZ4, 128 KiB of zstd. Ignores the rest.
    """
    kind = sys_flag & COMPRESSION_MASK if sys_flag & COMPRESSED else None
    try:
        if kind in (0, ZLIB):
            return zlib.decompressobj().decompress(body, size_max)
        if kind == LZ4:
            return bytes(_optional("lz4.frame").LZ4FrameDecompressor().decompress(body, max_length=size_max))
        if kind == ZSTD:
            return _zstd_beginning(_optional("zstandard"), body, size_max)
    except (zlib.error, RuntimeError, EOFError, ValueError, UsageError, BadMessage):
        pass
    return body[:size_max]


def inflate(data: Buffer, size_max: int) -> bytes:
    """Return the content of a zlib stream. Raises BadMessage if it is damaged, cut short, or larger than ``size_max`` bytes."""
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(data, size_max + 1)
    except zlib.error as exc:
        raise BadMessage(f"not a zlib stream: {exc}") from None
    return _checked(content, stream.eof, size_max)


def _decompress_lz4(body: bytes, size_max: int) -> bytes:
    stream = _optional("lz4.frame").LZ4FrameDecompressor()
    try:
        content = stream.decompress(body, max_length=size_max + 1)
    except (RuntimeError, EOFError, ValueError) as exc:
        raise BadMessage(f"not an LZ4 frame: {exc}") from None
    return _checked(content, stream.eof, size_max)


def _decompress_zstd(body: bytes, size_max: int) -> bytes:
    zstd = _optional("zstandard")
    content = _zstd_beginning(zstd, body, size_max + 1)
    if len(content) > size_max:
        return _checked(content, True, size_max)
    whole = zstd.ZstdDecompressor(max_window_size=max(size_max, ZSTD_WINDOW_BYTES)).decompressobj()
    try:
        whole.decompress(body)  # only this one says whether the end came
    except zstd.ZstdError as exc:
        raise BadMessage(f"not a zstd frame: {exc}") from None
    return _checked(content, whole.eof, size_max)


def _zstd_beginning(zstd: Any, body: bytes, size_max: int) -> bytes:
    try:
        with zstd.ZstdDecompressor(max_window_size=max(size_max, ZSTD_WINDOW_BYTES)).stream_reader(body) as reader:
            return bytes(reader.read(size_max))
    except zstd.ZstdError as exc:
        raise BadMessage(f"not a zstd frame: {exc}") from None


def _checked(content: bytes, ended: bool, size_max: int) -> bytes:
    if len(content) > size_max:
        raise BadMessage(f"a compressed body holds more than {size_max} bytes")
    if not ended:
        raise BadMessage("a compressed body is cut short")
    return bytes(content)


def _optional(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UsageError(f"{name.partition('.')[0]} is not installed: pip install 'halfmoon[compression]'") from None
