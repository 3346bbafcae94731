"""Socket and address of the console, and its extra. Loads nothing of the console, so that `serve` can use it too."""

from __future__ import annotations

import socket
from importlib.util import find_spec

from halfmoon.errors import HalfmoonError, UsageError

PORT = 8480
HOST = "127.0.0.1"
BACKLOG = 128
"""Connections that wait while the console starts."""


def check_extra() -> None:
    """Raise UsageError if a package is missing that the console needs."""
    for name in ("starlette", "uvicorn", "jinja2"):
        if find_spec(name) is None:
            raise UsageError(f"the console needs {name}, which is not installed: pip install 'halfmoon[console]'")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. Raises HalfmoonError if the address cannot be used."""
    plain = host.strip("[]")
    try:
        family = socket.getaddrinfo(plain or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((plain, port), family=family, backlog=BACKLOG)
    except OSError as exc:
        raise HalfmoonError(f"cannot listen on {host}:{port} (console): {exc.strerror or exc}") from None


def url_of(listening: socket.socket, *, secure: bool = False) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
