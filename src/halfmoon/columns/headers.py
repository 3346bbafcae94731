"""The JSON header of a pull, which comes by the thousand: bytes in, plain values out. Keeps nothing."""

from __future__ import annotations

from typing import Annotated

import msgspec

from halfmoon.conversion import json_decoder

_I32Number = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_I64Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


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
    maxMsgBytes: _I32Number | None = None  # of 5.x, as the next
    requestSource: _I32Number | None = None


class _PullEnvelope(msgspec.Struct, gc=False):
    extFields: PullHeader
    opaque: _I32Number
    flag: int = 0


_pull_json = json_decoder(_PullEnvelope, strict=False).decode


def pull_header_json(header: bytes) -> tuple[int, int, PullHeader] | None:
    """Read the JSON header of PULL_MESSAGE as (opaque, flag, fields); None: the general decoder must look at it."""
    try:
        head = _pull_json(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return head.opaque, head.flag, head.extFields
