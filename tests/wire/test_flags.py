"""Tests of the bits of sysFlag: each has the protocol's value, and none is another's."""

from __future__ import annotations

from halfmoon.wire import flags

RECORD_BITS = {
    "COMPRESSED": 0x0001,
    "MULTI_TAGS": 0x0002,
    "TRANSACTION_PREPARED": 0x0004,
    "TRANSACTION_COMMIT": 0x0008,
    "TRANSACTION_ROLLBACK": 0x000C,
    "BORN_HOST_V6": 0x0010,
    "STORE_HOST_V6": 0x0020,
    "NEED_UNWRAP": 0x0040,
    "INNER_BATCH": 0x0080,
    "LZ4": 0x0100,
    "ZSTD": 0x0200,
    "ZLIB": 0x0300,
}


def test_the_bits_of_a_record_are_those_of_the_protocol():
    assert {name: getattr(flags, name) for name in RECORD_BITS} == RECORD_BITS


def test_transaction_and_compression_types_fill_their_masks():
    assert flags.TRANSACTION_PREPARED | flags.TRANSACTION_COMMIT == flags.TRANSACTION_ROLLBACK == flags.TRANSACTION_MASK
    assert (flags.LZ4 | flags.ZSTD | flags.ZLIB) & ~flags.COMPRESSION_MASK == 0


def test_the_masks_and_single_bits_of_a_record_do_not_overlap():
    bits = [
        flags.COMPRESSED,
        flags.MULTI_TAGS,
        flags.TRANSACTION_MASK,
        flags.BORN_HOST_V6,
        flags.STORE_HOST_V6,
        flags.NEED_UNWRAP,
        flags.INNER_BATCH,
        flags.COMPRESSION_MASK,
    ]

    assert sum(bits) == 0x7FF


def test_the_bits_of_a_pull_are_those_of_the_protocol():
    push = flags.PULL_COMMIT_OFFSET | flags.PULL_SUSPEND
    lite = flags.PULL_SUSPEND | flags.PULL_SUBSCRIPTION | flags.PULL_LITE

    assert (push, lite, flags.PULL_CLASS_FILTER) == (3, 22, 8)
