"""A standby as a program: its core, the connection to its master, and the directory in which a broker can start later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from halfmoon.broker.copies.standby import Standby
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.embedded import Program, outgoing_connections, store_directory
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.drivers.asyncio_driver import AsyncioDriver
from halfmoon.runtime.server.certificates import Certificates
from halfmoon.runtime.server.outgoing import Outgoing
from halfmoon.runtime.server.server import Server


async def standby(settings: ServerSettings, data: Path) -> Program:
    """Return a slave of the broker that the settings name. It listens nowhere; it looks for its master once it is started.

    Raises:
        StoreLocked: another process has the directory.
        StoreError: the store does not open.
    """
    clock = Clock()
    connections = outgoing_connections(settings, Certificates(settings.tls))
    driver = AsyncioDriver(connections, clock)
    disk = store_directory(settings, data)
    try:
        core = Standby(settings.broker, replace(settings.store, data=str(data)), disk, clock.instant())
    except BaseException:
        disk.abandon()
        raise
    server = Server(core, [], clock, driver, busy_poll_us=0)
    core.following.on_stored = server.wake
    return Program(
        server, settings.host, 0, connections=connections, driver=driver, disk=disk, outgoing=Outgoing(server, core.following),
        standby=core,
    )  # fmt: skip
