"""The console as a process: a socket, the application, uvicorn. Ends with the process that started it, if one did."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from time import time_ns

import uvicorn

from halfmoon.client.admin import AdminSettings, AsyncAdmin
from halfmoon.console.access.attempts import Attempts
from halfmoon.console.access.audit import Audit
from halfmoon.console.access.sessions import Sessions
from halfmoon.console.access.users import Users
from halfmoon.console.app import application
from halfmoon.console.page import Services
from halfmoon.console.pages import ALL
from halfmoon.console.sampler import Sampler


async def serve(
    listening: socket.socket, data: Path, cluster: AdminSettings, ready: Callable[[], None], *, public_url: str = ""
) -> None:
    """Serve the console on a bound socket until SIGTERM or SIGINT. ``data`` holds its users and its audit log."""
    async with AsyncAdmin(cluster) as admin:
        users = Users(data / "users.json", now_ms)
        services = Services(
            admin, Sampler(admin), users, Sessions(now_ms), Attempts(now_ms),
            Audit(data / "audit.jsonl", now_ms), secure=public_url.startswith("https:"), public_url=public_url,
        )  # fmt: skip
        config = uvicorn.Config(
            application(services, ALL), loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, timeout_graceful_shutdown=2, limit_concurrency=200,
            h11_max_incomplete_event_size=16 * 1024,
        )  # fmt: skip
        server = uvicorn.Server(config)
        ready()
        await server.serve(sockets=[listening])


def now_ms() -> int:
    """The time, in ms since the epoch."""
    return time_ns() // 1_000_000
