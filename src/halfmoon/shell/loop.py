"""The event loop of a program: uvloop where it is installed, and as many descriptors as the system allows. Runs nothing itself."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Coroutine
from typing import Any, TypeVar

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment]

log = logging.getLogger("halfmoon.serve")
T = TypeVar("T")


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on uvloop, or on asyncio's own loop where uvloop is not installed."""
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(main)


def _new_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()


def allow_descriptors(wanted: int) -> int:
    """Raise the process's bound on open files towards ``wanted``, as far as the system lets us; return what it is now.

    Shells often begin with 1024, which a few hundred clients and the files of a store use up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (ValueError, OSError):
        return soft
    if allowed < wanted:
        say = log.warning if allowed < wanted // 2 else log.info
        say("the system allows %d open files, %d are wanted: more connections will be refused", allowed, wanted)
    return allowed
