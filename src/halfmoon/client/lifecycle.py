"""The life of an asyncio client from start to close: its connections, its driver, its instance."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Mapping
from functools import lru_cache
from inspect import isgenerator
from typing import Any, Generic, NamedTuple, Self, TypeVar

from halfmoon.client.constructors.by_keyword import ByKeyword
from halfmoon.client.constructors.name_servers import default_name_servers
from halfmoon.client.core.instance import Instance, client_id
from halfmoon.client.settings import ENVIRONMENT, ClientSettings, settings_of, with_environment
from halfmoon.effects import Op
from halfmoon.errors import HalfmoonError, NoNameServer, NotRunning, SettingError, UsageError
from halfmoon.logs import without_our_frames
from halfmoon.model import split_addresses
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.connections.asyncio_connections import Connections, local_ip
from halfmoon.runtime.connections.encrypted import OutgoingTls
from halfmoon.runtime.credentials import credentials
from halfmoon.runtime.drivers.asyncio_driver import THREADS, AsyncioDriver
from halfmoon.runtime.stacks import stacks
from halfmoon.runtime.tls import ClientTls
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import Command
from halfmoon.wire.ids import UniqueIds, pack_ip
from halfmoon.wire.signature import Credentials

S = TypeVar("S", bound=ClientSettings)
T = TypeVar("T")

log = logging.getLogger("halfmoon.client")

CLOSE_TIMEOUT_S = 10.0
"""Closing gives up on brokers that do not answer after this; a push consumer's wait for its listener comes on top."""


def from_environment(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the account and the encryption that the environment names where ``given`` settings name none.

    For a client that starts in another process. Raises SettingError.
    """
    found: dict[str, Any] = {}
    if not any(given[name] for name in ("access_key", "secret_key", "credentials")) and (account := credentials(os.environ)):
        found = account._asdict()
    if any(map(os.environ.get, ENVIRONMENT)):
        settings = with_environment(settings_of(ClientSettings, dict(given)), os.environ)
        found |= {name: getattr(settings, name) for name in ENVIRONMENT.values()}
    return found


class Reach(NamedTuple, Generic[S]):
    """How a client reaches its servers: its settings with those that the environment adds, and what these stand for."""

    settings: S
    tls: OutgoingTls | None
    """How its connections are encrypted; None: not at all."""
    credentials: Credentials | None
    """Signer of its requests; None: they are not signed."""


def reach_of(settings: S) -> Reach[S]:
    """Return how a client with these settings reaches its servers. Opens no connection and looks up no host.

    Raises SettingError for what does not fit, here or in the environment, and for files that cannot be read.
    """
    if not settings.nameserver and (known := default_name_servers(os.environ)).addresses:
        try:
            settings = settings_of(type(settings), {**values_of(settings), "nameserver": known.addresses})
        except UsageError as exc:
            raise SettingError(f"environment variable {known.variable}: {exc}") from None
        if known.conflict:
            _warn_once(known.conflict)
    settings = with_environment(settings, os.environ)
    given = settings.access_key, settings.secret_key, settings.security_token, settings.credentials
    return Reach(settings, _tls_of(settings) if settings.use_tls else None, credentials(os.environ, *given))


class Client(ByKeyword, Generic[S]):
    """Base of all clients. A subclass defines how it begins and how it finishes."""

    def __init__(self, settings: S, *, stable_id: bool = False, threads: int = THREADS) -> None:
        self.settings, self.tls, self.credentials = reach_of(settings)
        settings = self.settings
        self.called = type(self).__name__
        """Name of the class that the program uses, for errors: a blocking client is over an asyncio one."""
        self._signed = frozenset(split_addresses(getattr(settings, "signed_addresses", "")))
        ip = local_ip(settings.nameserver.split(";")[0] or None)
        process = f"{os.getpid()}#{time.monotonic_ns() + random.SystemRandom().randrange(1000)}"
        self.client_id = client_id(ip, settings, process, stable=stable_id)
        self.instance = Instance(settings, self.client_id, random.Random())
        self.instance.stacks = stacks
        self._ids = UniqueIds(pack_ip(ip), os.getpid(), random.Random())
        self.clock = Clock()
        self._threads = threads
        self.driver: AsyncioDriver | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.state = "new"
        self.blocking_requests: frozenset[type[Any]] = frozenset()
        """Requests that threads of blocking clients send over connections of their own (`runtime.drivers.blocking_driver`)."""

    def signs(self, address: str) -> Credentials | None:
        """Return who signs requests to an address; None: nobody does."""
        return self.credentials if not self._signed or address in self._signed else None

    @property
    def serialization(self) -> int:
        """Serialization of the headers of requests."""
        return ROCKETMQ if self.settings.serialization == "ROCKETMQ" else JSON

    async def start(self) -> None:
        """Connect: find routes, register with the brokers, start background work. A client starts once."""
        if self.state != "new":
            raise UsageError(f"The {self.called} service state not OK, maybe started once")
        if not self.settings.nameserver:
            raise NoNameServer('no name server address: give nameserver="host:port", or set HALFMOON_NAMESERVER')
        self.state, self._loop = "starting", asyncio.get_running_loop()
        self.driver = AsyncioDriver(
            Connections(
                self._asked,
                serialization=self.serialization,
                signs=self.signs,
                opened=self.instance.connected,
                lost=self.instance.disconnected,
                tls=self.tls,
            ),
            self.clock,
            threads=self._threads,
        )
        try:
            await self._begin(self.driver)
        except BaseException:
            await self._end()
            raise
        self.state = "running"

    async def close(self) -> None:
        """Finish what is in flight, unregister from the brokers, close all connections. Closing again does nothing."""
        if self.state != "running":
            return
        self._check_loop()
        self.state = "closing"
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S + getattr(self.settings, "close_wait_ms", 0) / 1000):
                await self._finish(self.running())
        except TimeoutError:
            pass
        finally:
            await self._end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _begin(self, driver: AsyncioDriver) -> None:
        raise NotImplementedError

    async def _finish(self, driver: AsyncioDriver) -> None:
        raise NotImplementedError

    async def _end(self) -> None:
        self.state = "closed"
        if self.driver is not None:
            await self.driver.close()
            await self.driver.connections.close()

    def running(self) -> AsyncioDriver:
        """Return what runs operations. Raises NotRunning."""
        if self.driver is None or self.state == "closed":
            raise NotRunning(f"The {self.called} is not running: start it first, and use it before it is closed")
        return self.driver

    def _check_loop(self) -> None:
        """Raise UsageError unless the event loop that runs here is the one that the client was started on. Nothing is sent then."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop and self._loop is not None:
            raise UsageError(
                f"The {self.called} was started on another event loop, which alone may use it: make and start one in each "
                "loop, hand the call over with asyncio.run_coroutine_threadsafe(…, loop), or use the blocking client, which all "
                "threads may share"
            )

    async def run(self, operation: Op[T]) -> T:
        """Run an operation of the client (`halfmoon.effects`), and return its result.

        Raises NotRunning, UsageError on another event loop than the client's, and what the operation raises.
        """
        driver = self.running()
        self._check_loop()
        try:
            return await driver.run(operation)
        except HalfmoonError as exc:
            raise without_our_frames(exc)  # noqa: B904 - it is the same error

    async def conclude(self, operation: Op[T]) -> T:
        """Run an operation as `run`, also when the client is closed meanwhile: what it asks for fails then."""
        self._check_loop()
        return await self._driving().run(operation)

    def post(self, operation: Op[None]) -> None:
        """Begin an operation and let it go on beside everything else; raises what its beginning raises."""
        self._check_loop()
        driver = self._driving()
        if (effect := next(operation, None)) is not None:
            driver.spawn(operation, "second phase", effect)

    def _driving(self) -> AsyncioDriver:
        if self.driver is None:
            raise NotRunning(f"The {self.called} is not running: start it first")
        return self.driver

    def submit(self, operation: Op[T]) -> asyncio.Future[T]:
        """Begin an operation as `run` and return at once; the future gives its result."""
        return asyncio.ensure_future(self.run(operation))

    def _asked(self, address: str, command: Command) -> Any:
        answer = self.instance.asked(address, command)
        return self.running().run(answer) if isgenerator(answer) else answer


@lru_cache(maxsize=16)
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def values_of(settings: ClientSettings) -> dict[str, Any]:
    """Return settings as keyword arguments."""
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


SIGNING = ("access_key", "secret_key", "security_token", "credentials", *ENVIRONMENT.values())
"""Settings that say who signs, and how connections are encrypted."""


def signing(settings: ClientSettings | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that say who signs and how connections are encrypted, for another client of the same user."""
    if isinstance(settings, ClientSettings):
        return {name: getattr(settings, name) for name in SIGNING}
    return {name: settings[name] for name in SIGNING if name in settings}


def _tls_of(settings: ClientSettings) -> OutgoingTls:
    """Return the TLS of a client's connections. Raises SettingError: certificates do not load."""
    return OutgoingTls(
        ClientTls(
            settings.tls_ca,
            settings.tls_cert,
            settings.tls_key,
            settings.tls_key_password,
            settings.tls_verify is not False,
            settings.tls_server_name.strip("[]"),
        )
    )
