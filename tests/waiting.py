"""Waiting for what real processes, threads and servers do in their own time: looks again and again, and fails after a bound.

Use it rather than a loop or a fixed wait. Imports nothing of tests, so that it may be sent to Python workers by value.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAUSE_S, WITHIN_S = 0.01, 60.0


def until(condition: Callable[[], Any], what: str = "what the test waits for", *, within_s: float = WITHIN_S) -> Any:
    """Wait until a function returns something true, and return it. Raises AssertionError after ``within_s``."""
    end = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {within_s:.0f} s for {what}"
        time.sleep(PAUSE_S)
    return found


async def soon(condition: Callable[[], Any], what: str = "what the test waits for", *, within_s: float = WITHIN_S) -> Any:
    """As `until`, on the event loop."""
    end = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {within_s:.0f} s for {what}"
        await asyncio.sleep(PAUSE_S)
    return found


def stand_still(process: int) -> None:
    """Stop a process, and wait until each of its threads stands: on a busy machine some go on for a while after the signal."""
    os.kill(process, signal.SIGSTOP)
    stats = Path(f"/proc/{process}/task")
    until(lambda: all(stat.read_text().rpartition(")")[2].split()[0] in "TtZX" for stat in stats.glob("*/stat")), "its stop")
