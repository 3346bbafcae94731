"""Waiting for what real brokers do in their own time: looks again every few milliseconds, and fails after a minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

PAUSE_S, WITHIN_S = 0.005, 60


def until(condition: Callable[[], Any]) -> None:
    """Return once something holds."""
    end = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(PAUSE_S)


async def soon(condition: Callable[[], Any]) -> None:
    """As `until`, on the event loop."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(PAUSE_S)
