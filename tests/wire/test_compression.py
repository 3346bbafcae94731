"""Tests of compressed bodies: three formats, the flags of old and new senders, damage, bombs, and missing packages."""

from __future__ import annotations

import sys
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.errors import BadMessage, UsageError
from halfmoon.wire.codes import COMPRESSED, LZ4, ZLIB, ZSTD
from halfmoon.wire.compression import beginning, compress, decompress, inflate

KINDS = [ZLIB, LZ4, ZSTD]
PACKAGES = {LZ4: "lz4.frame", ZSTD: "zstandard"}


def needs(kind: int) -> None:
    """Skip the test where the package of a kind is missing."""
    if kind in PACKAGES:
        pytest.importorskip(PACKAGES[kind])


@pytest.mark.parametrize("kind", KINDS)
@given(body=st.binary(max_size=2000))
def test_a_body_comes_back_as_it_was(kind, body):
    needs(kind)

    assert decompress(compress(body, kind, 3), COMPRESSED | kind) == body


def test_zlib_is_written_as_java_writes_it():
    assert compress(b"hello" * 100)[:2].hex() == "785e"


@pytest.mark.parametrize("sys_flag", [0x301, 0x001, 0x30D])
def test_zlib_is_read_with_the_flag_of_4_9_and_of_4_7(sys_flag):
    assert decompress(compress(b"hello" * 100), sys_flag) == b"hello" * 100


@pytest.mark.parametrize("sys_flag", [0, 0x300, 0x200, 0x8])
def test_type_bits_without_the_compressed_bit_mean_nothing(sys_flag):
    body = compress(b"hello" * 100)

    assert decompress(body, sys_flag) is body


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_would_grow_beyond_the_bound_is_refused_without_growing(kind):
    needs(kind)
    bomb = compress(bytes(64 * 1024 * 1024), kind, 3)

    tracemalloc.start()
    with pytest.raises(BadMessage, match="more than 100000 bytes"):
        decompress(bomb, COMPRESSED | kind, 100_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1_000_000


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_itself_is_allowed(kind):
    needs(kind)
    data = compress(bytes(1000), kind, 3)

    assert len(decompress(data, COMPRESSED | kind, 1000)) == 1000
    with pytest.raises(BadMessage):
        decompress(data, COMPRESSED | kind, 999)


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_is_cut_short_is_refused(kind):
    needs(kind)
    data = compress(bytes(range(256)) * 20, kind, 3)

    for size in range(len(data) - 1):
        with pytest.raises(BadMessage):
            decompress(data[:size], COMPRESSED | kind)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.binary(max_size=100))
def test_any_bytes_are_a_compressed_body_or_refused(kind, data):
    needs(kind)
    try:
        decompress(data, COMPRESSED | kind, 10_000)
    except BadMessage:
        pass


@pytest.mark.parametrize("kind", [0x400, 0x500, 0x700])
def test_an_unknown_type_is_refused(kind):
    with pytest.raises(UsageError):
        compress(b"x", kind)
    with pytest.raises(BadMessage):
        decompress(b"x", COMPRESSED | kind)


@pytest.mark.parametrize("kind", PACKAGES)
def test_a_missing_package_is_named_with_its_extra(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGES[kind], None)

    with pytest.raises(UsageError, match=r"halfmoon\[compression\]"):
        compress(b"x", kind)
    with pytest.raises(UsageError, match=r"halfmoon\[compression\]"):
        decompress(b"x", COMPRESSED | kind)


@pytest.mark.parametrize("kind", [ZLIB, ZSTD])
def test_a_level_that_does_not_exist_is_refused(kind):
    needs(kind)
    with pytest.raises(UsageError):
        compress(b"x", kind, 99)


def test_a_zlib_stream_is_inflated_within_a_bound():
    assert inflate(zlib.compress(b"abc"), 3) == b"abc"
    with pytest.raises(BadMessage):
        inflate(zlib.compress(b"abcd"), 3)


@pytest.mark.parametrize("kind", KINDS)
@given(body=st.binary(max_size=2000), size_max=st.integers(1, 2500))
def test_the_beginning_of_a_body_is_as_long_as_asked(kind, body, size_max):
    needs(kind)

    assert beginning(compress(body, kind, 3), COMPRESSED | kind, size_max) == body[:size_max]


@pytest.mark.parametrize("kind", KINDS)
def test_the_beginning_of_a_bomb_takes_no_more_memory_than_one_block(kind):
    needs(kind)
    bomb = compress(bytes(64 * 2**20), kind, 1)

    tracemalloc.start()
    try:
        assert beginning(bomb, COMPRESSED | kind, 240) == bytes(240)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sys_flag", [0, COMPRESSED, *(COMPRESSED | kind for kind in KINDS), COMPRESSED | 0x700])
def test_the_beginning_of_what_does_not_unpack_is_as_it_is_stored(sys_flag):
    assert beginning(b"no stream at all", sys_flag, 5) == b"no st"


def test_the_beginning_of_what_no_package_unpacks_is_as_it_is_stored(monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)

    assert beginning(b"(\xb5/\xfd...", COMPRESSED | ZSTD, 4) == b"(\xb5/\xfd"
