"""Name server and broker as programs: alone, or both in one process on one event loop. Joins cores to sockets, disk and clock.

Used by the commands, by the pytest plugin and by the ``__main__`` modules. Everything belongs to the event loop it was made in.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random, SystemRandom
from secrets import token_urlsafe
from typing import TYPE_CHECKING, NamedTuple, Protocol

from halfmoon.broker.broker import Broker
from halfmoon.broker.copies.serving import Serving
from halfmoon.broker.copies.standby import NO_MASTER, Standby
from halfmoon.broker.pairs.lease import Lease
from halfmoon.documentation import see
from halfmoon.errors import HalfmoonError, SettingError
from halfmoon.model import split_address
from halfmoon.nameserver.nameserver import NameServer
from halfmoon.ports import Core
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.pairs.leaving import alone
from halfmoon.programs.ports import PortTaken, server_on
from halfmoon.programs.resources.directory import as_it_is, disk_of, random_source, rule_files
from halfmoon.programs.resources.outgoing import connections_of, own_account
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.connections.asyncio_connections import Connections
from halfmoon.runtime.connections.outgoing import Outgoing
from halfmoon.runtime.drivers.asyncio_driver import AsyncioDriver, wait_signal
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.loop import run_loop
from halfmoon.runtime.readiness import READY, notify
from halfmoon.runtime.server.certificates import Certificates
from halfmoon.runtime.server.null_core import NullCore
from halfmoon.runtime.server.process import STOP_MS, Address, keep_freed_memory, run_until_signal
from halfmoon.runtime.server.server import Server
from halfmoon.settings import overwrite
from halfmoon.settings.http import HttpSettings
from halfmoon.store.epochs import Epochs

if TYPE_CHECKING:
    from halfmoon.programs.monitoring import Monitoring

REGISTERED_MS = 3000
"""How long a start waits for name servers; a broker goes on trying without it."""

REACHED_MS = 1000
"""How long a start waits for its own address to accept a connection."""

NAME_SERVER_DIRECTORY = "nameserver"
"""Where, inside the data directory, an embedded name server keeps its table: beside the store, under a name no store uses."""


SMALL = {
    "mappedFileSizeCommitLog": 16 * 1024**2,
    "mappedFileSizeConsumeQueue": 200_000,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
    "diskMaxUsedSpaceRatio": 95,
    "diskSpaceCleanForciblyRatio": 98,
    "diskSpaceWarningLevelRatio": 99,
}
"""Small files: a start costs milliseconds, and a test little space; messages of 4 MiB still fit. The disk may be rather full."""


log = logging.getLogger("halfmoon.serve")


class NotSaved(HalfmoonError):
    """A server stopped and could not save what it had acknowledged; the text names it and says why."""


class PairMember(Protocol):
    """A broker that changes its role: `halfmoon.programs.pairs.member.Member`, `halfmoon.programs.pairs.slave.Slave`."""

    name: str
    address: str
    connections_max: int
    failure: str | None
    on_program: Callable[[Program], None]

    def unready(self) -> str | None:
        """Return why it neither follows nor serves now; None: it does."""

    @property
    def present(self) -> Program | None:
        """Program that runs now, or was stopped last; None: there is none."""

    async def start(self) -> list[Address]:
        """Begin to follow the master, or to be it."""

    async def stop(self, within_ms: int = STOP_MS) -> None:
        """Stop cleanly."""

    async def abort(self) -> None:
        """End as a killed process does."""


class Program(NamedTuple):
    """A server that is bound and not started yet, or running. ``broker`` is its core when it is a broker."""

    server: Server
    host: str
    port: int
    broker: Broker | None = None
    connections: Connections | None = None
    driver: AsyncioDriver | None = None
    disk: RealDisk | None = None
    slaves: Server | None = None
    """The port of a broker where slaves copy its log."""
    standby: Standby | None = None
    serving: Serving | None = None
    outgoing: Outgoing | None = None
    """Parts of a slave: the core that copies, the core of ``server``, and the connection of the first to the master."""
    pair_member: PairMember | None = None
    """A member of a pair, or a slave that can take over: its programs change with its role."""

    @property
    def servers(self) -> list[Server | Outgoing | PairMember]:
        """Its ports, in the order of starting: a stop sends slaves the last messages before it gives back the log."""
        if self.pair_member is not None:
            return [self.pair_member]
        return [each for each in (self.slaves, self.outgoing, self.server) if each is not None]

    @property
    def registers(self) -> Broker | Serving | None:
        """The core that name servers show to clients, of a broker or a slave; None: it is a name server."""
        return self.broker or self.serving

    @property
    def stored(self) -> Broker | Standby | None:
        """The core that stores, here or in the role that was the last; None: nothing does."""
        present = self if self.pair_member is None else self.pair_member.present or self
        return present.broker or present.standby

    @property
    def address(self) -> str:
        """``host:port`` where it is reached; for a broker, the one that clients are told."""
        if self.registers is not None:
            return f"{self.registers.settings.address}:{self.port}"
        return f"{self.host}:{self.port}"

    async def close(self) -> None:
        """Give back what outlives the server's stop: outgoing connections, then the store's directory."""
        if self.pair_member is not None:  # it closes what it runs
            return
        if self.driver is not None:
            await self.driver.close()
        if self.connections is not None:
            await self.connections.close()
        core = self.broker or self.standby
        if core is not None:
            core.close(self.server.clock.instant())

    async def kill(self) -> None:
        """End as a killed process does, started or not: nothing more is answered, told or saved, and the directory is free."""
        for server in reversed(self.servers):
            await server.abort()
        if self.pair_member is not None:
            return
        if self.driver is not None:
            await self.driver.close()
        if self.connections is not None:
            await self.connections.close()
        if self.disk is not None:
            self.disk.abandon()

    async def join(self) -> None:
        """Wait, after the end, for works in threads: another program on the same directory must not meet them."""
        for each in (self.slaves, self.outgoing, self.server):
            if each is not None:
                await asyncio.to_thread(each.join)


UNASKED = f"clients are not asked for one: set tls.server.need.client.auth and a certificate of the server's own ({see('tls')})"
"""Why certificates of clients have no effect."""

Programs = tuple[Program, ...]
"""In the order of starting."""


async def name_server(
    settings: ServerSettings, data: Path | None, *, inside: bool = False, certificates: Certificates | None = None
) -> Program:
    """Return a name server, bound. ``data`` is its directory; None keeps nothing. ``inside``: it is in a broker's directory.

    Raises:
        SettingError: a certificate does not load, or those of clients may register and nobody asks for them.
        PortTaken: the port is in use.
        StoreLocked: another one has the directory.
        StoreError: what was saved does not read.
    """
    clock = Clock()
    certificates = certificates or Certificates(settings.tls)
    if settings.nameserver.register_certificates and not certificates.asks:
        raise SettingError(f"register_certificates: {UNASKED}")
    disks: list[RealDisk] = []

    def make(_host: str, port: int) -> NameServer:
        disks.extend([disk_of(data, settings.store, report=not inside)] if data is not None else [])  # not before the port is ours
        return NameServer(replace(settings.nameserver, port=port), disks[0] if disks else None, now=clock.instant())

    server = await server_on(
        settings.host,
        settings.nameserver.port,
        make,
        clock,
        None,
        certificates=certificates,
        proxies=settings.nameserver.proxy_protocol_from,
        connections_max=settings.nameserver.connections_max,
        connections_per_address_max=settings.nameserver.connections_per_address_max,
    )
    return Program(server, settings.host, server.bound[0][1], disk=disks[0] if disks else None)


async def broker(
    settings: ServerSettings, data: Path, random: Random | None = None, *,
    beside: str = "", certificates: Certificates | None = None, lease: Lease | None = None, clock: Clock | None = None,
) -> Program:  # fmt: skip
    """Return a broker, bound, its store open and recovered. It registers with the name servers of its settings once started.

    ``beside`` is the address of a name server in this process, which need not prove to be it. ``lease``: this is a pair's master.

    Raises:
        PortTaken: the port is in use; the directory was not touched then.
        StoreLocked: another process has the directory.
        StoreError: the store does not open.
        SettingError: a certificate does not load, it has the id of a slave, or accounts are wanted that make no sense.
    """
    if settings.broker.broker_id:
        raise SettingError(f"brokerId={settings.broker.broker_id} is that of a slave: give --slave-of, or leave brokerId out")
    clock = clock or Clock()
    certificates = certificates or Certificates(settings.tls)
    connections = connections_of(settings, certificates, beside)
    driver = AsyncioDriver(connections, clock)
    chosen = random if random is not None else random_source()

    disks: list[RealDisk] = []

    def make(_host: str, port: int) -> Broker:
        disks.append(alone(disk_of(data, settings.store), lease))  # not before the port is ours
        shown = replace(settings.broker, port=port, processors=settings.broker.processors or os.cpu_count() or 0)
        return Broker(shown, as_it_is(settings.store, data), disks[0], chosen, clock.instant(), rule_files(settings), lease)

    server = await _bound(settings, make, clock, driver, certificates, disks, in_thread=lease is not None)
    core = server.core
    assert isinstance(core, Broker)
    server.on_turn, connections.lost = core.stats.turned, core.registration.disconnected
    _certify(core, certificates)
    program = Program(server, settings.host, server.bound[0][1], core, connections, driver, disks[0])
    return await _with_slaves(program, settings, certificates)


async def _bound(
    settings: ServerSettings, make: Callable[[str, int], Core], clock: Clock, driver: AsyncioDriver, certificates: Certificates,
    disks: list[RealDisk], *, in_thread: bool = False,
) -> Server:  # fmt: skip
    """Return a server on the port for clients. If that fails, the ``disks`` that ``make`` opened are given back.

    ``in_thread``: its core is made while this loop goes on, for a lease is renewed there.
    """
    own = settings.broker
    try:
        server = await server_on(
            settings.host, own.port, (lambda _host, _port: NullCore()) if in_thread else make, clock, driver, own.vip_channel,
            own.busy_poll_us, certificates, own.proxy_protocol_from, own.connections_max, own.connections_per_address_max,
        )  # fmt: skip
        if in_thread:
            making = asyncio.ensure_future(asyncio.to_thread(make, *server.bound[0]))
            try:
                server.core = await asyncio.shield(making)
            except BaseException:
                await asyncio.wait([making])  # it may still write to the directory
                await server.abort()
                raise
    except BaseException:
        for disk in disks:
            disk.abandon()
        raise
    return server


async def _with_slaves(program: Program, settings: ServerSettings, certificates: Certificates) -> Program:
    """Return a broker with the port where slaves copy its log; without one, if none is needed and the port above is taken.

    Raises PortTaken; then the broker is gone.
    """
    own, core, driver = settings.broker, program.broker, program.driver
    assert core is not None
    feeding, clock = core.copies.feeding, program.server.clock
    wanted = own.slave_port or (program.port + 1 if own.port else 0)
    try:
        slaves = await server_on(
            settings.host, wanted, lambda _host, _port: feeding, clock, driver, busy_poll_us=0, certificates=certificates
        )
    except PortTaken as exc:
        if own.slave_port or own.lease:
            await program.kill()
            raise
        log.warning("no slave can copy this broker: %s; set slave_port (haListenPort) to a free one", exc)
        return program
    feeding.wake, feeding.on_copied = slaves.wake, program.server.wake
    host, port = own.slave_address or own.address, slaves.bound[0][1]
    overwrite(core.settings, replace(core.settings, slave_address=host, slave_port=port))  # it tells them to who asks
    core.registration.slave_address = f"{host}:{port}"
    return program._replace(slaves=slaves)


async def standby(settings: ServerSettings, data: Path, clock: Clock | None = None, pair_master: str | None = None) -> Program:
    """Return a slave of the broker that the settings name, bound. It looks for its master once it is started.

    ``pair_master``: see `halfmoon.broker.copies.standby.Standby`.

    Raises:
        PortTaken: the port is in use; the directory was not touched then.
        StoreLocked: another process has the directory.
        StoreError: the store does not open.
        SettingError: a certificate does not load, or accounts are wanted and make no sense.
    """
    clock, certificates = clock or Clock(), Certificates(settings.tls)
    connections = connections_of(settings, certificates)
    driver = AsyncioDriver(connections, clock)
    disks: list[RealDisk] = []

    def make(_host: str, port: int) -> Serving:
        disks.append(disk_of(data, settings.store))  # not before the port is ours
        own = replace(settings.broker, port=port, broker_id=settings.broker.broker_id or 1)
        epochs = Epochs.load(disks[0], random_source())
        core = Standby(own, as_it_is(settings.store, data), disks[0], epochs, clock.instant(), own_account())
        if pair_master is not None:
            core.pair_master, core.problem = pair_master, NO_MASTER
        return Serving(core, own, disks[0], SystemRandom(), clock.instant(), rule_files(settings))

    server = await _bound(settings, make, clock, driver, certificates, disks)
    core = server.core
    assert isinstance(core, Serving)
    core.wake, server.on_turn, connections.lost = server.wake, core.stats.turned, core.registration.disconnected
    _certify(core, certificates)
    copying = Server(core.standby, [], clock, driver, busy_poll_us=0)
    return Program(
        server, settings.host, server.bound[0][1], connections=connections, driver=driver, disk=disks[0], standby=core.standby,
        serving=core, outgoing=Outgoing(copying, core.standby.following, connections.tls),
    )  # fmt: skip


def _certify(core: Broker | Serving, certificates: Certificates) -> None:
    """Have a broker report its certificate; log it if its accounts have certificates that no client is asked for."""
    core.admin.certificate_expires_ms = lambda: certificates.expires_ms
    if core.access is not None and core.access.rules.certificates and not certificates.asks:
        log.warning("accounts have certificates: %s", UNASKED)


async def both(settings: ServerSettings, data: Path) -> tuple[Program, Program]:
    """Return a name server and a broker that registers with it (and with those of its settings), bound, in the order of starting.

    Raises as `name_server` and `broker` do; nothing stays bound then.
    """
    certificates, settings = Certificates(settings.tls), with_register_secret(settings)
    names = await name_server(settings, data / NAME_SERVER_DIRECTORY, inside=True, certificates=certificates)
    beside = f"{reachable(names.host)}:{names.port}"
    servers = ";".join(filter(None, (beside, settings.broker.nameserver)))
    settings = settings._replace(broker=replace(settings.broker, nameserver=servers))
    try:
        programs = names, await broker(settings, data, beside=beside, certificates=certificates)
    except BaseException:
        await names.kill()
        raise
    let_administrators(programs)
    return programs


def with_register_secret(settings: ServerSettings) -> ServerSettings:
    """Return settings for a name server and brokers of one process: where there are accounts, nobody else registers with it.

    They share the secret that is set for the one or the other, else one that nobody knows; so they do where certificates register.
    """
    if not (settings.broker.acl_enable or settings.nameserver.register_certificates):
        return settings
    secret = settings.nameserver.register_secret or settings.broker.register_secret or token_urlsafe()
    return settings._replace(
        nameserver=replace(settings.nameserver, register_secret=secret),
        broker=replace(settings.broker, register_secret=settings.broker.register_secret or secret),
    )


def let_administrators(programs: Programs) -> None:
    """Let the administrators of the brokers change routes and values at the name server, which is the first of the programs."""
    names, access = programs[0].server.core, next((each.broker.access for each in programs if each.broker is not None), None)
    assert isinstance(names, NameServer)
    if access is not None:

        def secrets_of(access_key: str, now: int) -> tuple[bytes, ...]:
            account = access.rules.accounts.get(access_key)
            return account.at(now).secrets if account is not None and account.admin else ()

        def is_administrator(certificate: tuple[str, ...]) -> bool:
            keys = access.rules.keys_of(certificate)
            return len(keys) == 1 and access.rules.accounts[keys[0]].admin

        names.registrars.administrator, names.registrars.is_administrator = secrets_of, is_administrator


async def start(programs: Programs) -> None:
    """Start what is bound, in order; return once name servers know the brokers (or did not answer in time)."""
    for program in programs:
        for server in program.servers:
            await server.start()
    await _registered(programs)
    await _reached(programs)


async def stop(programs: Programs, within_ms: int = STOP_MS) -> None:
    """Stop cleanly, last first."""
    for program in reversed(programs):
        for server in reversed(program.servers):
            await server.stop(within_ms)
        await program.close()


async def kill(programs: Programs) -> None:
    """End what is bound or started as a killed process does, last first."""
    for program in reversed(programs):
        await program.kill()


def run(make: Callable[[], Awaitable[Programs]], ready: Callable[[Programs, str], None], http: HttpSettings) -> None:
    """Run servers in this process until SIGTERM or SIGINT stops them cleanly; a second signal ends the process at once.

    ``make`` returns the coroutine that makes the programs; ``ready`` is told of them once all of them listen, and where they are
    watched (a URL; empty: nowhere); then a service manager is (``NOTIFY_SOCKET``). Raises NotSaved, PortTaken.
    """
    keep_freed_memory()
    run_loop(_run(make, ready, http))


async def _run(make: Callable[[], Awaitable[Programs]], ready: Callable[[Programs, str], None], http: HttpSettings) -> None:
    watching = await _monitoring(http)
    try:
        programs = await make()
    except BaseException:
        for each in watching:
            await each.server.stop()
        raise
    for each in watching:
        _watch(each, programs)

    async def tell() -> None:
        await _registered(programs)
        await _reached(programs)
        ready(programs, watching[0].server.url if watching else "")
        notify(READY)
        gc.freeze()  # what lives since the start lives to the end: collections need not walk it

    telling: list[asyncio.Task[None]] = []

    def all_listen(_bound: list[list[Address]]) -> None:
        telling.append(asyncio.create_task(tell()))

    try:
        await run_until_signal(
            [*chain(*(program.servers for program in programs)), *(each.server for each in watching)], all_listen
        )
    finally:
        for task in telling:
            task.cancel()
        for program in reversed(programs):
            await program.close()
    lost = [core.lost_at_stop() for program in programs if (core := program.stored) is not None]
    if any(lost):
        raise NotSaved(f"stopped, and not all is saved: {'; '.join(filter(None, lost))}")


def _watch(monitoring: Monitoring, programs: Programs) -> None:
    """Have servers watched, and those of a member of a pair again whenever it changes its role."""
    monitoring.watch([program.server for program in programs])
    for member in filter(None, [program.pair_member for program in programs]):
        monitoring.members.append(member)
        member.on_program = lambda present: monitoring.watch([present.server])


async def _monitoring(http: HttpSettings) -> list[Monitoring]:
    """Return what watches the servers, its port bound; none where it is not wanted, which then costs no import."""
    if http.http_port is None:
        return []
    from halfmoon.programs.monitoring import Monitoring

    monitoring = Monitoring(http)
    await monitoring.take()
    return [monitoring]


async def _registered(programs: Programs) -> None:
    """Wait until each broker has registered with its name servers, or has tried to: before, clients find no way to it."""
    for program in programs:
        if program.registers is not None and program.registers.registration.name_servers:
            await wait_signal(program.registers.registration.tried, REGISTERED_MS)


async def _reached(programs: Programs) -> None:
    """Connect to each broker at the address that clients are told, and warn where nothing accepts; it may be right for others."""
    await asyncio.gather(*(_reached_at(each.address, each) for each in programs if each.registers is not None))


async def _reached_at(address: str, program: Program) -> None:
    host, port = split_address(address)
    try:
        async with asyncio.timeout(REACHED_MS / 1000):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except OSError as exc:  # a timeout is one
        log.warning(
            "clients are told %s, where this machine cannot connect to the broker: listening on %s, brokerIP1 (broker.address) "
            "must be an address that leads there: %s", address, program.host or "all addresses", exc or "no answer",
        )  # fmt: skip


def reachable(host: str) -> str:
    """Return the host under which this process reaches its own listener."""
    if host in ("", "0.0.0.0", "::", "[::]"):
        return "127.0.0.1"
    return f"[{host.strip('[]')}]" if ":" in host else host
