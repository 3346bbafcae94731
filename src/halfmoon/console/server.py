"""Console as a process: a socket, the application, uvicorn, and signals that stop it in order."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import uvicorn

from halfmoon.client.admin import AdminSettings, AsyncAdmin
from halfmoon.client.files import check_private
from halfmoon.console.access.attempts import Attempts
from halfmoon.console.access.audit import Audit
from halfmoon.console.access.database import now_ms
from halfmoon.console.access.sessions import Sessions
from halfmoon.console.access.users import Users
from halfmoon.console.app import Console
from halfmoon.console.connections import REQUESTS_MAX, BrowserConnection
from halfmoon.console.page import ConsoleServices
from halfmoon.console.pages import ALL
from halfmoon.console.sampler import Sampler
from halfmoon.errors import SettingError


class ConsoleAddress(NamedTuple):
    """Address of a console.

    Its bound socket, the certificate and key that it shows (empty: no TLS; a key in the same file), and the URL under which
    browsers find it behind a proxy (empty: there is none).
    """

    listening: socket.socket
    certificate: str = ""
    private_key: str = ""
    public_url: str = ""

    @property
    def secure(self) -> bool:
        """Whether browsers use TLS, so that cookies are sent over nothing else."""
        return self.public_url.startswith("https:") if self.public_url else bool(self.certificate)


async def serve(
    place: ConsoleAddress, data: Path, cluster: AdminSettings, ready: Callable[[int], None], *, parent: int | None = None
) -> None:
    """Serve the console until SIGTERM or SIGINT, a second of which ends the process at once.

    ``data`` holds its users and its audit log; ``ready`` is told how many users there are. ``parent``: a descriptor of a pipe, at
    whose end it stops as well. Raises SettingError: a certificate or the database is wrong.
    """
    context = _context(place.certificate, place.private_key) if place.certificate else None
    async with AsyncAdmin(cluster) as admin, Sampler(admin) as sampler:
        users = Users(data, now_ms)
        console = Console(
            ConsoleServices(
                admin, sampler, users, Sessions(now_ms), Attempts(now_ms), Audit(data, now_ms),
                secure=place.secure, public_url=place.public_url,
            ),
            ALL,
        )  # fmt: skip
        config = uvicorn.Config(
            console, loop="asyncio", http=type("Connection", (BrowserConnection,), {"context": context}), ws="none", lifespan="off",
            log_config=None, log_level="error",  # its warnings are a line for each bad request, whoever sends it
            access_log=False, server_header=False, proxy_headers=False, timeout_graceful_shutdown=2, limit_concurrency=REQUESTS_MAX,
            h11_max_incomplete_event_size=16 * 1024, backlog=REQUESTS_MAX // 2,  # asyncio accepts so many before it looks at any
        )  # fmt: skip
        server = uvicorn.Server(config)
        server.capture_signals = nullcontext  # type: ignore[assignment, method-assign]  # else it ends by the signal, not with 0
        _stop_when_asked(server, parent)
        ready(len(users.all()))
        warming = asyncio.create_task(console.renderer.warm())
        await server.serve(sockets=[place.listening])
        warming.cancel()


def _stop_when_asked(server: uvicorn.Server, parent: int | None) -> None:
    loop = asyncio.get_running_loop()

    def stop(ended: int | None = None) -> None:
        if ended is not None:
            loop.remove_reader(ended)
        elif server.should_exit:
            os._exit(1)
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if parent is not None:
        loop.add_reader(parent, stop, parent)  # it writes nothing more


def _context(certificate: str, private_key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, private_key or None, password=lambda: "")
    except OSError as exc:  # SSLError is one
        reason = getattr(exc, "reason", None) or exc.strerror or exc
        raise SettingError(f"certificate {certificate} with key {private_key or certificate} does not load: {reason}") from None
    check_private(Path(private_key or certificate), "the private key in it")
    return context


def first_user(data: Path) -> str:
    """Return the command that adds a user to the console of a directory."""
    return f"halfmoon console user add NAME --role operator --data {quote(str(data.parent))}"
