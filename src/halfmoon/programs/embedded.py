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
from typing import TYPE_CHECKING, NamedTuple

from halfmoon.broker.access.files import RuleFiles
from halfmoon.broker.broker import Broker
from halfmoon.broker.copies.standby import Standby
from halfmoon.broker.settings import BrokerSettings
from halfmoon.documentation import see
from halfmoon.errors import HalfmoonError, SettingError
from halfmoon.model import split_address, split_addresses
from halfmoon.nameserver.nameserver import NameServer
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.ports import PortTaken, server_on
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.connections.asyncio_connections import Connections
from halfmoon.runtime.connections.encrypted import OutgoingTls
from halfmoon.runtime.connections.outgoing import Outgoing
from halfmoon.runtime.credentials import credentials
from halfmoon.runtime.drivers.asyncio_driver import AsyncioDriver, wait_signal
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.files.permissions import PERMISSIONS, report_readable
from halfmoon.runtime.loop import run_loop
from halfmoon.runtime.readiness import READY, notify
from halfmoon.runtime.server.certificates import Certificates
from halfmoon.runtime.server.process import STOP_MS, Address, keep_freed_memory, run_until_signal
from halfmoon.runtime.server.server import Server
from halfmoon.runtime.tls import ClientTls
from halfmoon.settings import overwrite
from halfmoon.settings.http import HttpSettings
from halfmoon.settings.tls import ClientCertificates, TlsMode, TlsSettings
from halfmoon.store.settings import StoreSettings
from halfmoon.wire.signature import Credentials, Signs

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
"""Small files, so that a start costs milliseconds and a test little space (messages of 4 MiB still fit), on a disk that may be full
of other things."""

REGISTRAR = "halfmoon-broker"
"""The access key of registrations that are signed by a shared secret: any would do."""

RULES = "conf/plain_acl.yml"
"""Where RocketMQ keeps its accounts, in the directory that ``ROCKETMQ_HOME`` names."""


log = logging.getLogger("halfmoon.serve")


class NotSaved(HalfmoonError):
    """A server stopped and could not save what it had acknowledged; the text names it and says why."""


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
    """The core of a slave, and what connects it to its master."""
    outgoing: Outgoing | None = None

    @property
    def servers(self) -> list[Server | Outgoing]:
        """Its ports, in the order of starting: a stop sends slaves the last messages before it gives back the log."""
        if self.outgoing is not None:
            return [self.outgoing]
        return [*filter(None, [self.slaves]), self.server]

    @property
    def address(self) -> str:
        """``host:port`` where it is reached; for a broker, the one that clients are told."""
        if self.broker is not None:
            return f"{self.broker.settings.address}:{self.port}"
        return f"{self.host}:{self.port}"

    async def close(self) -> None:
        """Give back what outlives the server's stop: outgoing connections, then the store's directory."""
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
        if self.driver is not None:
            await self.driver.close()
        if self.connections is not None:
            await self.connections.close()
        if self.disk is not None:
            self.disk.abandon()


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
        disks.extend([_disk(data, settings.store, report=not inside)] if data is not None else [])  # not before the port is ours
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
    beside: str = "", certificates: Certificates | None = None,
) -> Program:  # fmt: skip
    """Return a broker, bound, its store open and recovered. It registers with the name servers of its settings once started.

    ``beside`` is the address of a name server in this process, which need not prove to be it.

    Raises:
        SettingError: a certificate does not load.
        PortTaken: the port is in use; the directory was not touched then.
        StoreLocked: another process has the directory.
        StoreError: the store does not open.
        SettingError: accounts are wanted, and there are none or their files make no sense.
    """
    clock = Clock()
    certificates = certificates or Certificates(settings.tls)
    connections = _connections(settings, certificates, beside)
    driver = AsyncioDriver(connections, clock)
    chosen = random if random is not None else Random(SystemRandom().getrandbits(64))

    disks: list[RealDisk] = []

    def make(_host: str, port: int) -> Broker:
        disks.append(_disk(data, settings.store))  # not before the port is ours
        shown = replace(settings.broker, port=port, processors=settings.broker.processors or os.cpu_count() or 0)
        return Broker(shown, _as_it_is(settings.store, data), disks[0], chosen, clock.instant(), _rule_files(settings))

    try:
        server = await server_on(
            settings.host, settings.broker.port, make, clock, driver, settings.broker.vip_channel, settings.broker.busy_poll_us,
            certificates, settings.broker.proxy_protocol_from, settings.broker.connections_max,
            settings.broker.connections_per_address_max,
        )  # fmt: skip
    except BaseException:
        for disk in disks:
            disk.abandon()
        raise
    core = server.core
    assert isinstance(core, Broker)
    server.on_turn, connections.lost = core.stats.turned, core.registration.disconnected
    _certify(core, certificates)
    return await _with_slaves(
        Program(server, settings.host, server.bound[0][1], core, connections, driver, disks[0]), settings, certificates
    )


async def _with_slaves(program: Program, settings: ServerSettings, certificates: Certificates) -> Program:
    """Return a broker with the port where slaves copy its log; without one, if none was asked for and the port above is taken.

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
        if own.slave_port:
            await program.kill()
            raise
        log.warning("no slave can copy this broker: %s; set slave_port (haListenPort) to a free one", exc)
        return program
    feeding.wake, feeding.on_copied = slaves.wake, program.server.wake
    host, port = own.slave_address or own.address, slaves.bound[0][1]
    overwrite(core.settings, replace(core.settings, slave_address=host, slave_port=port))  # it tells them to who asks
    core.registration.slave_address = f"{host}:{port}"
    return program._replace(slaves=slaves)


async def standby(settings: ServerSettings, data: Path) -> Program:
    """Return a slave of the broker that the settings name. It listens nowhere; it looks for its master once it is started.

    Raises:
        StoreLocked: another process has the directory.
        StoreError: the store does not open.
    """
    clock = Clock()
    connections = _connections(settings, Certificates(settings.tls))
    driver = AsyncioDriver(connections, clock)
    disk = _disk(data, settings.store)
    try:
        core = Standby(settings.broker, replace(settings.store, data=str(data)), disk, clock.instant())
    except BaseException:
        disk.abandon()
        raise
    server = Server(core, [], clock, driver, busy_poll_us=0)
    return Program(
        server, settings.host, 0, connections=connections, driver=driver, disk=disk, outgoing=Outgoing(server, core.following),
        standby=core,
    )  # fmt: skip


def _certify(core: Broker, certificates: Certificates) -> None:
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
    watched (an URL; empty: nowhere); then a service manager is (``NOTIFY_SOCKET``). Raises NotSaved, PortTaken.
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
        each.watch([program.server for program in programs])

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
    lost = [core.lost_at_stop() for program in programs if (core := program.broker or program.standby) is not None]
    if any(lost):
        raise NotSaved(f"stopped, and not all is saved: {'; '.join(filter(None, lost))}")


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
        if program.broker is not None and program.broker.registration.name_servers:
            await wait_signal(program.broker.registration.tried, REGISTERED_MS)


async def _reached(programs: Programs) -> None:
    """Connect to each broker at the address that clients are told, and warn where nothing accepts; it may be right for others."""
    await asyncio.gather(*(_reached_at(each.address, each) for each in programs if each.broker is not None))


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


def _signs(settings: BrokerSettings) -> Signs:
    """Return who signs what a broker asks: of name servers by the secret for registrations, else by its environment's account."""
    own = credentials(os.environ)
    registrar = Credentials(REGISTRAR, settings.register_secret) if settings.register_secret else own
    name_servers = frozenset(split_addresses(settings.nameserver))
    return lambda address: registrar if address in name_servers else own


def _outgoing_tls(tls: TlsSettings, beside: str) -> OutgoingTls | None:
    """Return how a broker's connections to name servers are encrypted. Follows BrokerStartup: so they are where only TLS is taken.

    Raises SettingError: certificates do not load, or the name server ``beside`` requires one and there is none to show.
    """
    if not tls.enable and tls.server_mode is not TlsMode.ENFORCING:
        return None
    if beside and tls.server_client_auth is ClientCertificates.REQUIRE and not tls.client_cert:
        raise SettingError(
            "tls.server.need.client.auth=require is for the broker's own connection to the name server, too: give it a certificate"
            f" (tls.client.certPath, tls.client.keyPath), or set tls.server.need.client.auth=optional ({see('tls')})"
        )
    asked = ClientTls(tls.client_trust, tls.client_cert, tls.client_key, tls.client_key_password, tls.client_auth_server)
    return OutgoingTls(asked, frozenset(filter(None, [beside])))


def _connections(settings: ServerSettings, certificates: Certificates, beside: str = "") -> Connections:
    """Return the connections of a broker to name servers and other brokers. Raises SettingError."""
    return Connections(signs=_signs(settings.broker), tls=_outgoing_tls(certificates.settings, beside), probed=True)


def _disk(data: Path, settings: StoreSettings, *, report: bool = True) -> RealDisk:
    disk = RealDisk(data, PERMISSIONS[settings.readable_by])
    if report:
        report_readable(data, disk.permissions)
    return disk


def _rule_files(settings: ServerSettings) -> RuleFiles | None:
    """Return where a broker's accounts are, as its settings or RocketMQ's own variable say; None: in its data directory."""
    broker = settings.broker
    home = Path(os.environ.get("ROCKETMQ_HOME") or "/nonexistent")
    if not broker.acl_enable or not (broker.acl_file or (home / RULES).exists()):
        return None
    path = Path(broker.acl_file).expanduser().absolute() if broker.acl_file else home / RULES
    if not path.exists():  # a disk would make the directory
        raise SettingError(f"{path}: there is no such file of accounts: see {see('access')}")
    root, main = (path.parent, path.name) if broker.acl_file else (home, RULES)
    return RuleFiles(RealDisk(root, PERMISSIONS[settings.store.readable_by]), str(root), main)


def _as_it_is(settings: StoreSettings, data: Path) -> StoreSettings:
    """Return the settings with the directory, and with the machine's memory where it was not set."""
    settings = replace(settings, data=str(data))
    if settings.memory_bytes:
        return settings
    try:
        return replace(settings, memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):
        return settings
