"""Runs servers until the process is asked to end. Knows signals and the order of starting and stopping, nothing of sockets."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from typing import Protocol

from halfmoon.runtime.server.descriptors import KEPT_MAX, allow_descriptors

Address = tuple[str, int]

STOP_MS = 30_000
"""How long a clean stop may take: unregistering and the last sync."""


class Served(Protocol):
    """What is started and stopped: `halfmoon.runtime.server.serve.Server`."""

    connections_max: int

    async def start(self) -> list[Address]:
        """Listen, and return the addresses really bound."""

    async def stop(self, within_ms: int = STOP_MS) -> None:
        """Stop cleanly."""


async def run_until_signal(
    servers: Sequence[Served], ready: Callable[[list[list[Address]]], None] | None = None, within_ms: int = STOP_MS
) -> None:
    """Start servers in order, tell ``ready`` the addresses bound by each, stop them in reverse at the first SIGTERM or SIGINT.

    A second signal leaves the process at once with status 1.
    """
    loop = asyncio.get_running_loop()
    allow_descriptors(sum(server.connections_max for server in servers) + KEPT_MAX)
    asked = asyncio.Event()

    def stop_asked() -> None:
        if asked.is_set():
            os._exit(1)
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_asked)
    started: list[Served] = []
    try:
        bound = []
        for server in servers:
            bound.append(await server.start())
            started.append(server)
        if ready is not None:
            ready(bound)
        await asked.wait()
    finally:
        for server in reversed(started):
            await server.stop(within_ms)
