"""Numbers that travel: flags of frames, of records and of pulls, language codes, versions, permission bits. Holds no behaviour.

Request codes stand in the protocol table (`halfmoon.wire.headers`), response codes in `halfmoon.errors`.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

JSON, ROCKETMQ = 0, 1
"""Serialisations of a frame's header."""

RESPONSE, ONEWAY = 1, 2
"""Bits of a frame's flag."""

VERSION = 409
"""Version that we announce: V4_9_8. Name servers from 4.9.4 on answer it in standard JSON."""

VERSION_UNSIGNED = 399
"""Version announced by a signed request with an unsigned field: servers of 5.x remove the field only from requests this old."""

VERSION_V3_0_7, VERSION_V3_0_11, VERSION_V3_1_8, VERSION_V3_4_9 = 28, 37, 62, 121
VERSION_V4_9_4, VERSION_V5_0_0 = 401, 413
_VERSION_V4_0_0_SNAPSHOT, _VERSION_V5_9_9 = 212, 611


def version_name(number: int) -> str:
    """Return RocketMQ's name of a version, V4_9_8 for 409; a number outside of 4.0 to 5.9 is its own name.

    Follows MQVersion (RocketMQ 5.3.3): ten patches of each minor version, each with a snapshot before it.
    """
    if not _VERSION_V4_0_0_SNAPSHOT <= number <= _VERSION_V5_9_9:
        return str(number)
    patches, is_release = divmod(number - _VERSION_V4_0_0_SNAPSHOT, 2)
    return f"V{4 + patches // 100}_{patches // 10 % 10}_{patches % 10}" + ("" if is_release else "_SNAPSHOT")


class Language(IntEnum):
    """Language of a client or server. Follows LanguageCode (RocketMQ 5.3.3)."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class Perm(IntFlag):
    """Permission bits of a topic or broker. Follows PermName (RocketMQ 4.7.1)."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


# ---------------------------------------------------------------- bits of numbers called sysFlag: of records, pulls and topics

COMPRESSED = 0x1
"""The body is compressed; the type stands in `COMPRESSION_MASK`."""

MULTI_TAGS = 0x2
"""The topic's filter type is MULTI_TAG. Set by the broker."""

TRANSACTION_MASK = 0xC
TRANSACTION_NOT, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK = 0x0, 0x4, 0x8, 0xC
"""The transaction bits, of records and of ``commit_or_rollback``."""

BORN_HOST_V6, STORE_HOST_V6 = 0x10, 0x20
"""The host takes 20 bytes instead of 8."""

NEED_UNWRAP, INNER_BATCH = 0x40, 0x80
"""Inner batches of 5.x; read and passed on, never made."""

COMPRESSION_MASK = 0x700
LZ4, ZSTD, ZLIB = 0x100, 0x200, 0x300
"""Compression types. No type with `COMPRESSED` set is zlib too, as 4.7.1 writes it."""

PULL_COMMIT_OFFSET, PULL_SUSPEND, PULL_SUBSCRIPTION, PULL_CLASS_FILTER, PULL_LITE = 0x1, 0x2, 0x4, 0x8, 0x10
"""Bits of a pull: ``commit_offset`` is to be stored, the broker may hold the call, the subscription is in the request, a dead
feature, and a pull consumer's pull."""

TOPIC_UNIT, TOPIC_UNIT_SUB = 0x1, 0x2
"""Bits of a topic's sysFlag."""

UNLIKE = "must subscribe alike"
"""Words of a remark (24): the members of a group subscribe to different things. What each subscribes to is around it."""
