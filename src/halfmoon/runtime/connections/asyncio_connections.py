"""Outgoing connections on asyncio: one an address, multiplexed by opaque. Holds sockets and deadlines; decides nothing.

What one turn of the loop writes to one peer leaves in one socket write. Replies are matched only when the response bit is
set, because the server issues requests of its own on the same connection; those go to the handler. Never retries: a lost
connection fails everything that waits on it, and the next request connects anew.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, cast

from halfmoon.errors import HalfmoonError, NotRunning, TooManyRequests
from halfmoon.limits import CONNECTION_IDLE_MS
from halfmoon.model import split_address
from halfmoon.runtime.connections.encrypted import OutgoingTls
from halfmoon.runtime.connections.sockets import (
    CONNECT_TIMEOUT_MS,
    connect_failed,
    connection_lost,
    no_frame,
    notice_restarts,
    request_timeout,
    send_at_once,
)
from halfmoon.runtime.tls import HUNG_UP, client_reason
from halfmoon.wire.codes import JSON, Language
from halfmoon.wire.command import Command, commands, encode, reply_command, request_bytes
from halfmoon.wire.frame import Inbox
from halfmoon.wire.signature import Signs, nobody
from halfmoon.wire.table import request_text

Handler = Callable[[str, Command], "Command | Awaitable[Command | None] | None"]
"""Told of the address and a request from the server; returns the reply (or an awaitable of it), or None for none."""

IN_FLIGHT_MAX = 65_535
"""Requests without a reply over all connections. Follows NettyClientConfig.clientAsyncSemaphoreValue."""
UNSENT_BYTES_MAX = 4 * 1024 * 1024
"""Bytes that wait for one peer's socket; beyond it senders wait, so that a slow broker costs no memory."""
SERVED_MAX = 256
"""Requests of one server that are being answered; more are dropped, as a server that asks so much is broken."""
SILENT_MS = 10_000
"""A peer that sent nothing for this long while a request timed out is given up: the connection may be a black hole."""

TIMER_S = 0.001
"""Timers may ring so much too early: loops count milliseconds."""
LOOK_S = 4e-6
"""Time to let pass for each waiting request between two looks at all of them, which cost a twentieth of it."""

log = logging.getLogger("halfmoon.runtime")


class Connections:
    """One connection to each address that is asked for, opened when first needed.

    ``handler`` answers requests of servers. ``serialization`` is that of the requests; replies are read in either. ``signs`` says
    who signs what goes to an address; with ``tls`` all connections are encrypted. ``opened`` is told of every address to which a
    connection was made, ``lost`` of every one whose connection ended before `close`. ``probed``: the system notices peers that have
    restarted.
    Belongs to one event loop.
    """

    def __init__(
        self,
        handler: Handler | None = None,
        *,
        serialization: int = JSON,
        signs: Signs = nobody,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        in_flight_max: int = IN_FLIGHT_MAX,
        idle_ms: int = CONNECTION_IDLE_MS,
        opened: Callable[[str], None] | None = None,
        lost: Callable[[str], None] | None = None,
        tls: OutgoingTls | None = None,
        probed: bool = False,
    ) -> None:
        self.handler, self.probed = handler, probed
        self.opened, self.lost = opened, lost
        self.serialization, self.signs, self.tls = serialization, signs, tls
        self.connect_timeout_ms = connect_timeout_ms
        self.idle_ms = idle_ms
        self.in_flight = 0
        self._in_flight_max = in_flight_max
        self._connections: dict[str, _Connection] = {}
        self._connecting: dict[str, asyncio.Task[_Connection]] = {}
        self.permits: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._opaque = 0
        self._closed = False

    async def call(self, address: str, request: Any, body: bytes, timeout_ms: int) -> Command:
        """Send a request and return its reply, whatever its code.

        ``timeout_ms`` covers a wait for a permit, connecting, sending and the reply. Raises NetworkError (one of ConnectFailed,
        ConnectionLost, RequestTimeout, TooManyRequests), NotRunning once closed.
        """
        connection = self._connections.get(address)
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        if connection is None or connection.blocked or self.in_flight >= self._in_flight_max:
            connection = await self._ready(address, deadline, timeout_ms)
        opaque = self._next_opaque()
        future = connection.ask(opaque, self._encode(address, request, body, opaque), deadline, timeout_ms)
        try:
            return await future
        except asyncio.CancelledError:
            connection.over(opaque)  # a late answer finds nobody, and the permit is free
            raise

    def begin(self, address: str, request: Any, body: bytes, timeout_ms: int) -> asyncio.Future[Command] | None:
        """Send a request where nothing has to be waited for; the future gives what `call` does. None: nothing was sent.

        A future that is cancelled counts as a request in flight until its answer comes or its time is over.
        """
        connection = self._connections.get(address)
        if connection is None or connection.blocked or self.in_flight >= self._in_flight_max:
            return None
        self._opaque = opaque = self._opaque + 1 & 0x7FFFFFFF
        return connection.ask(opaque, self._encode(address, request, body, opaque), None, timeout_ms)

    async def tell(
        self, address: str, request: Any, body: bytes, timeout_ms: int = CONNECT_TIMEOUT_MS, remark: str | None = None
    ) -> None:
        """Send a one-way request; returns once the bytes are handed over. Raises as `call` does."""
        connection = self._connections.get(address)
        if connection is None or connection.blocked:
            connection = await self._ready(address, asyncio.get_running_loop().time() + timeout_ms / 1000, timeout_ms, permit=False)
        connection.send(self._encode(address, request, body, self._next_opaque(), oneway=True, remark=remark))

    def connected(self, address: str) -> bool:
        """Whether a connection to the address is open."""
        return address in self._connections

    def drop(self, address: str, reason: str = "dropped") -> None:
        """Close the connection to an address, if there is one; what waits on it fails with ConnectionLost."""
        if connection := self._connections.get(address):
            connection.abort(reason)

    async def close(self) -> None:
        """Close everything, after what was written has left. Requests in flight fail with ConnectionLost."""
        self._closed = True
        for task in [*self._connecting.values(), *self._tasks]:
            task.cancel()
        for connection in list(self._connections.values()):
            connection.finish("closed by us")
        for permit in self.permits:
            if not permit.done():
                permit.cancel()
        await asyncio.sleep(0)

    # ------------------------------------------------------------ inside

    def _encode(
        self, address: str, request: Any, body: bytes, opaque: int, *, oneway: bool = False, remark: str | None = None
    ) -> bytes:  # fmt: skip
        return request_bytes(
            request, body, opaque, self.serialization, oneway=oneway, remark=remark, credentials=self.signs(address)
        )  # fmt: skip

    def _next_opaque(self) -> int:
        self._opaque = self._opaque + 1 & 0x7FFFFFFF
        return self._opaque

    async def _ready(self, address: str, deadline: float, timeout_ms: int, *, permit: bool = True) -> _Connection:
        """Return a connection that takes bytes now, with a permit for one request when asked for."""
        if self._closed:
            raise NotRunning("the connections are closed")
        while True:
            if permit and self.in_flight >= self._in_flight_max:
                await self._permit(address, deadline)
                continue
            connection = self._connections.get(address)
            if connection is None:
                connection = await self._connect(address, deadline)
                if connection.lost:  # who closes what it accepts is not asked again and again
                    raise connect_failed(address, connection.reason)
            if connection.blocked:
                await connection.writable(deadline, timeout_ms)
                continue
            if permit and self.in_flight >= self._in_flight_max:
                continue
            if not connection.lost:
                return connection

    async def _permit(self, address: str, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self.permits.append(future)
        timer = loop.call_at(deadline, _fail, future, TooManyRequests("too many requests in flight", address))
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # it could have gone on: another one may
                self.released()
            raise
        finally:
            timer.cancel()

    def released(self) -> None:
        """Note that a request is in flight no more, and let one go on that waits for that."""
        while self.permits:
            future = self.permits.popleft()
            if not future.done():
                future.set_result(None)
                break

    async def _connect(self, address: str, deadline: float) -> _Connection:
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.create_task(self._open(address), name=f"connect {address}")
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._opened(address, done))
        try:
            async with asyncio.timeout_at(deadline):  # not wait_for, which in 3.11 forgets that it was cancelled as the task ended
                return await asyncio.shield(task)
        except TimeoutError:
            raise connect_failed(address, "no connection in time") from None
        except asyncio.CancelledError:
            if self._closed:
                raise NotRunning("the connections are closed") from None
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():  # not who waits for it: all tasks were
                raise connect_failed(address, "cancelled from outside") from None
            raise

    def _opened(self, address: str, task: asyncio.Task[_Connection]) -> None:
        if self._connecting.get(address) is task:
            del self._connecting[address]
        if not task.cancelled():
            task.exception()  # looked at, so that nobody complains when every caller gave up before

    async def _open(self, address: str) -> _Connection:
        host, port = split_address(address)
        loop, tls = asyncio.get_running_loop(), self.tls
        context, name = (None, None) if tls is None else (tls.context(address), tls.name(address))
        try:
            async with asyncio.timeout(self.connect_timeout_ms / 1000):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self, address), host, port, ssl=context, server_hostname=name
                )
        except (ConnectionAbortedError, ConnectionResetError) as exc:
            raise connect_failed(address, exc if tls is None else HUNG_UP) from exc
        except (OSError, TimeoutError) as exc:
            raise connect_failed(address, exc) from exc
        if connection.lost:
            raise connect_failed(address, connection.reason)
        self._connections[address] = connection
        if self.opened is not None:
            self.opened(address)
        return connection

    def serve(self, connection: _Connection, command: Command) -> None:
        """Answer a request of the server."""
        if self.handler is None or len(self._tasks) >= SERVED_MAX:
            log.debug("request from server ignored: request=%s from=%s", request_text(command.code), connection.address)
            return
        try:
            answer = self.handler(connection.address, command)
        except Exception as exc:
            log.exception("handler of server requests failed: request=%s from=%s", request_text(command.code), connection.address)
            answer = reply_command(command, 1, f"{type(exc).__name__}: {exc}", language=Language.PYTHON)
        if answer is None:
            return
        if inspect.isawaitable(answer):
            task = asyncio.ensure_future(self._serve_later(connection, command, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif not command.is_oneway:
            connection.send(encode(answer))

    async def _serve_later(self, connection: _Connection, command: Command, answer: Awaitable[Command | None]) -> None:
        try:
            reply = await answer
        except Exception as exc:
            log.exception("handler of server requests failed: request=%s from=%s", request_text(command.code), connection.address)
            reply = reply_command(command, 1, f"{type(exc).__name__}: {exc}", language=Language.PYTHON)
        if reply is not None and not command.is_oneway and not connection.lost:
            connection.send(encode(reply))

    def forget(self, connection: _Connection) -> None:
        """Forget a connection that is gone."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            if self.lost is not None and not self._closed:
                self.lost(connection.address)


class _Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, owner: Connections, address: str) -> None:
        self.address = address
        self.waiting: dict[int, tuple[asyncio.Future[Command], float, int]] = {}
        """By opaque: who waits, until when by the loop's clock, and how long that was (ms)."""
        self.blocked = False
        self.lost = False
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox()
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._unblock: list[asyncio.Future[None]] = []
        self._read_at = self._active_at = self._loop.time()
        self._idle: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None  # one for all that wait
        self._look_at = inf
        self.reason = "closed by the peer"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            send_at_once(sock)
            if self._owner.probed:
                notice_restarts(sock)
        self._idle = self._loop.call_later(self._owner.idle_ms / 1000, self._look_idle)

    def ask(self, opaque: int, data: bytes, deadline: float | None, timeout_ms: int) -> asyncio.Future[Command]:
        """Send a request; its answer, or what became of it, is the future's. Without a deadline all of the time is left."""
        if deadline is None:
            deadline = self._loop.time() + timeout_ms / 1000
        future: asyncio.Future[Command] = self._loop.create_future()
        self.waiting[opaque] = future, deadline, timeout_ms
        self._owner.in_flight += 1
        if deadline < self._look_at:
            self._look_again(deadline)
        self.send(data)
        return future

    def over(self, opaque: int) -> asyncio.Future[Command] | None:
        """Take out a request, if it waits still; return its future if somebody wants to know what becomes of it."""
        asked = self.waiting.pop(opaque, None)
        if asked is None:
            return None
        self._owner.in_flight -= 1
        if self._owner.permits:
            self._owner.released()
        return None if asked[0].done() else asked[0]

    def send(self, data: bytes) -> None:
        """Write with everything else of this turn."""
        if not self._out:  # the first of this turn; the others leave with it
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is None or self.lost or not out:
            return
        self._active_at = self._loop.time()
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def data_received(self, data: bytes) -> None:
        self._read_at = self._active_at = self._loop.time()
        try:
            self._inbox.feed(data)
            for command in commands(self._inbox):
                if command.flag & 1:
                    if (future := self.over(command.opaque)) is not None:
                        future.set_result(command)
                else:
                    self._owner.serve(self, command)
            if self._inbox.fault is not None:
                raise self._inbox.fault
        except HalfmoonError as exc:
            reason = no_frame(data, exc)
            # No warning: who asks is told the reason, and warns of it at a bounded rate.
            log.info("connection closed: peer=%s reason=%s", self.address, reason)
            self.abort(reason)

    def _look_again(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._look_at = at
        self._timer = self._loop.call_at(at, self._expire)

    def _expire(self) -> None:
        """Fail the requests whose time is over, and look again when that of the next one is."""
        at, soonest, silent = self._loop.time(), inf, False
        for opaque, (_, deadline, timeout_ms) in list(self.waiting.items()):
            if deadline > at + TIMER_S:
                soonest = min(soonest, deadline)
            elif (future := self.over(opaque)) is not None:
                future.set_exception(request_timeout(self.address, timeout_ms))
                silent |= (at - self._read_at) * 1000 >= max(SILENT_MS, timeout_ms)
        self._timer, self._look_at = None, inf
        if soonest < inf:
            self._look_again(max(soonest, at + len(self.waiting) * LOOK_S))
        if silent:
            self.abort("it is silent")

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        self._wake()

    async def writable(self, deadline: float, timeout_ms: int) -> None:
        """Wait until the socket takes bytes again."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._unblock.append(future)
        late = TooManyRequests(f"no room to send to {self.address} within {timeout_ms}(ms)", self.address)
        timer = self._loop.call_at(deadline, _fail, future, late)
        try:
            await future
        finally:
            timer.cancel()
            if future in self._unblock:
                self._unblock.remove(future)

    def _wake(self) -> None:
        waiting, self._unblock = self._unblock, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _look_idle(self) -> None:
        left = self._active_at + self._owner.idle_ms / 1000 - self._loop.time()
        if left > 0 or self.waiting:  # who waits for a long pull has the time-out of that
            self._idle = self._loop.call_later(max(left, 1.0), self._look_idle)
        else:
            self.finish("idle")

    def finish(self, reason: str) -> None:
        """Close after what was written."""
        self._flush()
        self.reason = reason
        if self._transport is not None:
            self._transport.close()
        self._end()

    def abort(self, reason: str) -> None:
        """Close at once."""
        self.reason = reason
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self.lost:
            self.reason = client_reason(exc) or str(exc) or type(exc).__name__
        self._end()

    def _end(self) -> None:
        if self.lost:
            return
        self.lost, self.blocked = True, False
        self._owner.forget(self)
        for timer in (self._idle, self._timer):
            if timer is not None:
                timer.cancel()
        for opaque in list(self.waiting):
            if (future := self.over(opaque)) is not None:
                future.set_exception(connection_lost(self.address, self.reason))
        self._wake()


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def local_ip(towards: str | None = None) -> str:
    """Return this machine's address as seen on the way to ``towards`` (``host:port``); 127.0.0.1 when there is none."""
    targets = [split_address(towards)] if towards else []
    for host, port in [*targets, ("192.0.2.1", 9)]:
        try:
            info = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(info[0], socket.SOCK_DGRAM) as probe:
                probe.connect(info[4])
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"
