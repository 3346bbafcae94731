"""Tests of the protocol's numbers: languages, permissions, bits of sysFlag, and the version that decides what servers answer."""

from __future__ import annotations

import pytest

from halfmoon.wire import codes
from halfmoon.wire.codes import Language, Perm

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


def test_languages_have_the_protocol_s_numbers():
    names = ["JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"]

    assert [Language[name].value for name in names] == list(range(14))


def test_permissions_have_the_protocol_s_bits():
    assert (Perm.INHERIT, Perm.WRITE, Perm.READ, Perm.PRIORITY) == (1, 2, 4, 8)
    assert Perm.READ | Perm.WRITE == 6


def test_our_version_is_one_that_gets_standard_json_from_name_servers():
    assert codes.VERSION == 409
    assert codes.VERSION >= codes.VERSION_V4_9_4
    assert codes.VERSION < codes.VERSION_V5_0_0


def test_the_bits_of_a_record_are_those_of_the_protocol():
    assert {name: getattr(codes, name) for name in RECORD_BITS} == RECORD_BITS


def test_transaction_and_compression_types_fill_their_masks():
    assert codes.TRANSACTION_PREPARED | codes.TRANSACTION_COMMIT == codes.TRANSACTION_ROLLBACK == codes.TRANSACTION_MASK
    assert (codes.LZ4 | codes.ZSTD | codes.ZLIB) & ~codes.COMPRESSION_MASK == 0


def test_the_masks_and_single_bits_of_a_record_do_not_overlap():
    bits = [
        codes.COMPRESSED,
        codes.MULTI_TAGS,
        codes.TRANSACTION_MASK,
        codes.BORN_HOST_V6,
        codes.STORE_HOST_V6,
        codes.NEED_UNWRAP,
        codes.INNER_BATCH,
        codes.COMPRESSION_MASK,
    ]

    assert sum(bits) == 0x7FF


def test_the_bits_of_a_pull_are_those_of_the_protocol():
    push = codes.PULL_COMMIT_OFFSET | codes.PULL_SUSPEND
    lite = codes.PULL_SUSPEND | codes.PULL_SUBSCRIPTION | codes.PULL_LITE

    assert (push, lite, codes.PULL_CLASS_FILTER) == (3, 22, 8)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        *((212, "V4_0_0_SNAPSHOT"), (213, "V4_0_0"), (399, "V4_9_3"), (409, "V4_9_8"), (412, "V5_0_0_SNAPSHOT")),
        *((413, "V5_0_0"), (479, "V5_3_3"), (611, "V5_9_9"), (612, "612"), (211, "211"), (0, "0"), (-1, "-1")),
    ],
)
def test_a_version_has_rocketmqs_name(number, name):
    assert codes.version_name(number) == name
