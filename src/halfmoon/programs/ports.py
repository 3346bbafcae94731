"""Takes the ports of a server before its core exists, because a broker's address is part of every message id."""

from __future__ import annotations

import logging
from collections.abc import Callable

from halfmoon.broker.settings import VipChannel
from halfmoon.errors import HalfmoonError
from halfmoon.ports import Core
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.drivers.asyncio_driver import AsyncioDriver
from halfmoon.runtime.server.busy_polling import BUSY_POLL_US
from halfmoon.runtime.server.certificates import Certificates
from halfmoon.runtime.server.null_core import NullCore
from halfmoon.runtime.server.places import PER_ADDRESS_MAX
from halfmoon.runtime.server.server import CONNECTIONS_MAX, Server
from halfmoon.settings.networks import Networks

VIP_STEP = 2
"""How far below a broker's port its second one is. Follows MixAll.brokerVIPChannel."""

log = logging.getLogger("halfmoon.serve")


class PortTaken(HalfmoonError):
    """A port cannot be listened on; the text names it and says why."""


async def server_on(
    host: str, port: int, make: Callable[[str, int], Core], clock: Clock, driver: AsyncioDriver | None,
    vip: VipChannel = VipChannel.NEVER, busy_poll_us: int = BUSY_POLL_US, certificates: Certificates | None = None,
    proxies: str = "", connections_max: int = CONNECTIONS_MAX, connections_per_address_max: int = PER_ADDRESS_MAX,
) -> Server:  # fmt: skip
    """Return a server, bound but not listening yet, whose core was made once the address was known.

    ``make`` is given the host and port really bound (``port`` 0 takes a free one). ``vip`` says whether the same core is served
    two ports below, too. ``certificates`` say what the ports speak; preambles of the PROXY protocol are
    believed from ``proxies``, addresses and networks. The rest is as for `Server`.

    Raises:
        PortTaken: the address is in use or not ours; nothing was made then.
    """
    server = Server(
        NullCore(),
        [],
        clock,
        driver,
        busy_poll_us=busy_poll_us,
        certificates=certificates,
        proxies=Networks(proxies) if proxies else None,
        connections_max=connections_max,
        connections_per_address_max=connections_per_address_max,
    )
    try:
        _, bound_port = await _take(server, host, port)
        if vip is not VipChannel.NEVER:
            await _take_vip(server, host, bound_port, vip, chosen=port == 0)
        server.core = make(host, bound_port)
    except BaseException:
        await server.abort()
        raise
    return server


async def _take(server: Server, host: str, port: int) -> tuple[str, int]:
    try:
        return await server.take(host.strip("[]"), port)
    except OSError as exc:
        raise PortTaken(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from None


async def _take_vip(server: Server, host: str, port: int, vip: VipChannel, *, chosen: bool) -> None:
    """Take the second port where it is free. One below a port that the system chose is left without a word when it is not."""
    try:
        if port <= VIP_STEP:
            raise PortTaken(f"there is no port {VIP_STEP} below {port}")
        await _take(server, host, port - VIP_STEP)
    except PortTaken as exc:
        if vip is VipChannel.ALWAYS:
            raise
        if not chosen:
            log.warning("no second port for clients with vipChannelEnabled: %s", exc)
