"""Takes the ports of a server before its core exists, because a broker's address is part of every message id."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

from halfmoon.errors import HalfmoonError
from halfmoon.ports import Core
from halfmoon.shell.clock import Clock
from halfmoon.shell.drive import Driver
from halfmoon.shell.serve import Server


class PortTaken(HalfmoonError):
    """A port cannot be listened on; the text names it and says why."""


async def server_on(host: str, port: int, make: Callable[[str, int], Core], clock: Clock, driver: Driver | None) -> Server:
    """Return a server, bound but not listening yet, whose core was made once the address was known.

    ``make`` is given the host and port really bound (``port`` 0 takes a free one).

    Raises:
        PortTaken: the address is in use or not ours; nothing was made then.
    """
    server = Server(cast(Core, SimpleNamespace(feed=None)), [(host.strip("[]"), port)], clock, driver)
    try:
        ((_, bound_port),) = await server.bind()
    except OSError as exc:
        raise PortTaken(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from None
    try:
        server.core = make(host, bound_port)
    except BaseException:
        release(server)
        raise
    server.feed = server.core.feed
    return server


def release(server: Server) -> None:
    """Give back the ports of a server that is bound and will not be started."""
    server._close_sockets()
