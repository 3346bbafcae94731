"""Event loops: uvloop's where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

try:
    import uvloop
except ImportError:  # not made for this platform
    uvloop = None  # type: ignore[assignment]

T = TypeVar("T")


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a new loop; return its result."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop."""
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()
