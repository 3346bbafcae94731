"""Numbers that travel: request codes, flags of frames, language codes, versions, permission bits. Holds no behaviour.

Response codes stand in `halfmoon.errors`; flags of stored records in `halfmoon.wire.flags`.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

JSON, ROCKETMQ = 0, 1
"""Serialisations of a frame's header."""

RESPONSE, ONEWAY = 1, 2
"""Bits of a frame's flag."""

VERSION = 409
"""What we say we are: V4_9_8, which name servers from 4.9.4 answer in standard JSON."""

VERSION_V3_0_7, VERSION_V3_0_11, VERSION_V3_1_8, VERSION_V3_4_9 = 28, 37, 62, 121
VERSION_V4_9_4, VERSION_V5_0_0 = 401, 413


class Language(IntEnum):
    """Who speaks. Follows LanguageCode (RocketMQ 5.3.3)."""

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
