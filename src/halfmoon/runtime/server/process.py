"""Process-wide set-up of servers: signals that stop them in order, and the allocator. For programs only."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Sequence
from typing import Protocol

from halfmoon.runtime.descriptors import KEPT_MAX, allow_descriptors
from halfmoon.runtime.readiness import STOPPING, notify

Address = tuple[str, int]

STOP_MS = 30_000
"""Longest duration of a clean stop: unregistering and the last sync."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT_BYTES = 16 * 1024 * 1024
"""Free memory at the heap's end that is not returned to the system."""
_GROWTH_BYTES = 1024 * 1024
_BLOCK_BYTES = 1024 * 1024
"""Size from which blocks get their own pages."""


class RunnableServer(Protocol):
    """Interface of a server that is started and stopped, such as `halfmoon.runtime.server.server.Server`."""

    connections_max: int

    async def start(self) -> list[Address]:
        """Listen, and return the bound addresses."""

    async def stop(self, within_ms: int = STOP_MS) -> None:
        """Stop cleanly."""


async def run_until_signal(
    servers: Sequence[RunnableServer], ready: Callable[[list[list[Address]]], None] | None = None, within_ms: int = STOP_MS
) -> None:
    """Start servers in order, call ``ready`` with the bound addresses of each, stop them in reverse at the first SIGTERM or SIGINT.

    A second signal ends the process at once with status 1. Notifies a service manager of the first.
    """
    loop = asyncio.get_running_loop()
    allow_descriptors(sum(server.connections_max for server in servers) + KEPT_MAX)
    asked = asyncio.Event()

    def stop_asked() -> None:
        if asked.is_set():
            os._exit(1)  # no clean-up: a second signal means that something hangs
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_asked)
    started: list[RunnableServer] = []
    try:
        bound = []
        for server in servers:
            bound.append(await server.start())
            started.append(server)
        if ready is not None:
            ready(bound)
        await asked.wait()
        notify(STOPPING)
    finally:
        for server in reversed(started):
            await server.stop(within_ms)


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next turn. Return False with another C library, without effect.

    A turn needs some hundred KiB, which by default return to the kernel at once: each turn then pays a page fault for every 4 KiB,
    more than its copies cost.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    options = {_TRIM_THRESHOLD: _KEPT_BYTES, _TOP_PAD: _GROWTH_BYTES, _MMAP_THRESHOLD: _BLOCK_BYTES}
    taken = [set_option(option, value) for option, value in options.items()]
    return all(taken)
