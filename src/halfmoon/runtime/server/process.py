"""What servers want of their process: signals that stop them in order, and memory that stays. Only programs may ask for these."""

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
"""How long a clean stop may take: unregistering and the last sync."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT_BYTES = 16 * 1024 * 1024
"""Free memory at the heap's end that is not given back."""
_GROWTH_BYTES = 1024 * 1024
_BLOCK_BYTES = 1024 * 1024
"""Blocks from this size on have pages of their own."""


class Service(Protocol):
    """What is started and stopped: `halfmoon.runtime.server.server.Server`."""

    connections_max: int

    async def start(self) -> list[Address]:
        """Listen, and return the addresses really bound."""

    async def stop(self, within_ms: int = STOP_MS) -> None:
        """Stop cleanly."""


async def run_until_signal(
    servers: Sequence[Service], ready: Callable[[list[list[Address]]], None] | None = None, within_ms: int = STOP_MS
) -> None:
    """Start servers in order, tell ``ready`` the addresses bound by each, stop them in reverse at the first SIGTERM or SIGINT.

    A second signal leaves the process at once with status 1. A service manager is told of the first.
    """
    loop = asyncio.get_running_loop()
    allow_descriptors(sum(server.connections_max for server in servers) + KEPT_MAX)
    asked = asyncio.Event()

    def stop_asked() -> None:
        if asked.is_set():
            os._exit(1)  # no clean-up: whoever asks twice wants it to be over, whatever hangs
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_asked)
    started: list[Service] = []
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
    """Have glibc keep what a turn freed for the next turn. Returns False where the C library is another one; nothing is done then.

    What a turn reads and answers takes some hundred KiB, which by default go back to the kernel at once: each turn then pays
    a page fault for every 4 KiB, more than its copies cost.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    options = {_TRIM_THRESHOLD: _KEPT_BYTES, _TOP_PAD: _GROWTH_BYTES, _MMAP_THRESHOLD: _BLOCK_BYTES}
    taken = [set_option(option, value) for option, value in options.items()]
    return all(taken)
