"""The requests that read much of one queue at once, and that tell how much there is. Declare fields and bodies, decide nothing.

Halfmoon's own; an Apache broker answers 3.
"""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from halfmoon.wire.json import Body
from halfmoon.wire.needs import subscribe
from halfmoon.wire.table import I32, I64, Header, request

STRETCHES_MAX = 16
"""Ranges of one request: 2 ms of the broker's time, where their queue entries are cached."""

PARTS = 16
"""A range is weighed in so many parts of equal numbers of offsets, so that it can be cut where its bytes are."""


class ReadRangeReply(Header):
    """Codes are those of a pull. The body has ``count`` records, those of the offsets below ``next_begin_offset``.

    ``passed_over`` is there when the broker has filtered: so many offsets below ``next_begin_offset`` hold a message that the
    filter leaves out. An answer that found messages and passed over all of them has code 0 and no body.
    """

    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    count: I32
    passed_over: I32 | None = None


@request(31040, "READ_RANGE", reply=ReadRangeReply, since="Halfmoon", needs=subscribe(topic="topic"))
class ReadRange(Header):
    """Read the records of queue offsets [begin, end), as many as ``max_bytes`` hold, at least one. Never waits, has no group.

    Half messages and op records are read only by who says so (``half_messages``) at a broker that lets them be read.
    ``subscription`` and ``expression_type`` are a filter as in a pull, ``TAG`` or ``SQL92``: what it leaves out is not sent. Tags
    are compared by their hash, and a broker may leave the filter out: who asks must look again. ``topic_birth_ms`` says of which
    topic the offsets speak; where it is another by now, the answer is 31017.
    """

    topic: str
    queue_id: I32
    begin: I64
    end: I64
    max_bytes: I32
    half_messages: bool | None = None
    subscription: str | None = None
    expression_type: str | None = None
    topic_birth_ms: I64 | None = None


@request(31041, "WEIGH_RANGES", since="Halfmoon", needs=subscribe(topic="topic"))
class WeighRanges(Header):
    """Ask how many bytes the records of ranges have, by a sample: body `Stretches`, reply body `Weights`.

    Costs some 0.1 ms a range, however long it is, where queue entries are cached. Who may ask is who may read.
    """

    topic: str
    half_messages: bool | None = None


class Stretch(Body):
    """Offsets [begin, end) of a queue."""

    queue_id: I32
    begin: I64
    end: I64


class Stretches(Body):
    """Ranges of one topic, `STRETCHES_MAX` at most."""

    stretches: list[Stretch] = []


class Weights(Body):
    """For each range that was asked for, in that order: about how many bytes of records each of its `PARTS` parts has."""

    part_bytes: list[list[I64]] = []
