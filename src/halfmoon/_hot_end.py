"""The header of END_TRANSACTION, read quickly: as `halfmoon._hot`, for the second phase of transactions. Keeps nothing."""

from __future__ import annotations

from typing import Annotated

import msgspec

from halfmoon.conversion import json_decoder

_I32Number = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_I64Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class EndHeader(msgspec.Struct, gc=False):
    """The fields of END_TRANSACTION that a broker uses, under their wire names."""

    producerGroup: str
    tranStateTableOffset: _I64Number
    commitLogOffset: _I64Number
    commitOrRollback: _I32Number
    msgId: str
    fromTransactionCheck: bool = False
    stillOpen: bool = False


class _EndEnvelope(msgspec.Struct, gc=False):
    extFields: EndHeader
    opaque: _I32Number
    flag: int = 0
    remark: str | None = None


_end_json = json_decoder(_EndEnvelope, strict=False).decode


def end_header_json(header: bytes) -> tuple[int, int, EndHeader, str | None] | None:
    """Read the JSON header of END_TRANSACTION as (opaque, flag, fields, remark); None: the plain road must look at it."""
    try:
        head = _end_json(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return head.opaque, head.flag, head.extFields, head.remark
