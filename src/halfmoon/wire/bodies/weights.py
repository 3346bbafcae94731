"""Bodies of the request that asks how many bytes ranges hold (`halfmoon.wire.headers.ranges`). Holds shapes; decides nothing."""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from halfmoon.wire.json import Body
from halfmoon.wire.table import I32, I64

STRETCHES_MAX = 16
"""Ranges of one request: 2 ms of the broker's time, where their queue entries are cached."""

PARTS = 16
"""A range is weighed in so many parts of equal numbers of offsets, so that it can be cut where its bytes are."""


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
