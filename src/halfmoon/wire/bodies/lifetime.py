"""``lifetime.json``: when a broker lived. Holds shapes; decides nothing. `halfmoon.wire.bodies` gives the names."""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from halfmoon.wire.json import Body
from halfmoon.wire.table import I64


class Gap(Body):
    """From the last sign of life to the next."""

    begin_ms: I64 = 0
    end_ms: I64 = 0


class LifetimeTable(Body):
    """The last sign of life, and the gaps before it."""

    seen_ms: I64 = 0
    gaps: list[Gap] = []
