"""Requests that read or estimate long ranges of one queue. Declares fields and bodies, decides nothing.

Halfmoon's own; an Apache broker answers 3.
"""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from halfmoon.wire.json import Body
from halfmoon.wire.needs import subscribe
from halfmoon.wire.table import I32, I64, Header, request

STRETCHES_MAX = 16
"""Ranges of one request: 2 ms of the broker's time if their queue entries are cached."""

PARTS = 16
"""Number of parts, of equal numbers of offsets, in which a range is weighed, so that it can be split evenly by bytes."""


class ReadRangeReply(Header):
    """Codes are those of a pull. The body has ``count`` records, those of the offsets below ``next_begin_offset``.

    ``passed_over`` is set if the broker filtered: the number of messages below ``next_begin_offset`` that the filter excluded.
    If it excluded all messages, the code is 0 and the body empty.
    """

    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    count: I32
    passed_over: I32 | None = None


@request(31040, "READ_RANGE", reply=ReadRangeReply, since="Halfmoon", needs=subscribe(topic="topic"))
class ReadRange(Header):
    """Read the records of queue offsets [begin, end), as many as ``max_bytes`` hold, at least one. Never waits, has no group.

    Half messages and op records are read only with ``half_messages``, at a broker that allows it. ``subscription`` and
    ``expression_type`` are a filter as in a pull, ``TAG`` or ``SQL92``. Tags are compared by their hash, and a broker may skip the
    filter, so the client must filter again. ``topic_birth_ms`` identifies the topic of the offsets; if the topic was recreated
    since, the answer is 31017.
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
    """Estimate the bytes of the records in ranges, by a sample: body `Stretches`, reply body `Weights`.

    Costs about 0.1 ms a range of any length if queue entries are cached. Needs the permission to read.
    """

    topic: str
    half_messages: bool | None = None


class Stretch(Body):
    """Range of offsets [begin, end) of a queue."""

    queue_id: I32
    begin: I64
    end: I64


class Stretches(Body):
    """Ranges of one topic, `STRETCHES_MAX` at most."""

    stretches: list[Stretch] = []


class Weights(Body):
    """Estimated bytes of records in each of the `PARTS` parts of each range, in the order of the request."""

    part_bytes: list[list[I64]] = []
