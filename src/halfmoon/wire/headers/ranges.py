"""The request that reads much of one queue at once. Declares fields, decides nothing.

Halfmoon's own; an Apache broker answers 3.
"""

from __future__ import annotations

from halfmoon.wire.table import I32, I64, Header, request


class ReadRangeReply(Header):
    """Codes are those of a pull. The body has ``count`` records, those of the offsets below ``next_begin_offset``."""

    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    count: I32


@request(31040, "READ_RANGE", reply=ReadRangeReply, since="Halfmoon")
class ReadRange(Header):
    """Read the records of queue offsets [begin, end), as many as ``max_bytes`` hold, at least one. Never waits, has no group.

    Half messages and op records are read only by who says so (``half_messages``) at a broker that lets them be read.
    """

    topic: str
    queue_id: I32
    begin: I64
    end: I64
    max_bytes: I32
    half_messages: bool | None = None
