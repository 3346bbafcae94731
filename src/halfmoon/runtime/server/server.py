"""Runs a server core on asyncio (uvloop where it is installed): sockets, one timer, threads for `Work`, signals.

The unit of work is a turn of the event loop: bytes are handed to ``core.feed`` as they come, one ``core.commit`` a turn handles
what all connections brought, and one write a connection goes out. While a single connection brings bytes, its turn comes at
once. Knows nothing of frames: idle connections, bad bytes and refusals are the core's business; slow readers and too many
connections are handled here. What a connection does is in `halfmoon.runtime.server.connection`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any, Protocol, cast

from halfmoon.effects import Close, Start, Work, Write
from halfmoon.instant import LONG_AGO, Instant
from halfmoon.metrics import TurnTimes
from halfmoon.ports import Core
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.descriptors import allowed_descriptors, connections_limit
from halfmoon.runtime.server.acceptor import Acceptor
from halfmoon.runtime.server.addresses import bound_socket
from halfmoon.runtime.server.busy_polling import BUSY_POLL_US, BusyPolling
from halfmoon.runtime.server.certificates import RELOAD_S, Certificates
from halfmoon.runtime.server.connection import Feed, ServerConnection
from halfmoon.runtime.server.null_core import NullCore
from halfmoon.runtime.server.opening import Handshakes
from halfmoon.runtime.server.places import PER_ADDRESS_MAX, Places
from halfmoon.runtime.server.process import STOP_MS, Address
from halfmoon.runtime.server.supervised import supervised
from halfmoon.settings.networks import Networks

log = logging.getLogger("halfmoon.serve")

CONNECTIONS_MAX = 10_000
"""Connections of one server. Each costs a descriptor and some kilobytes; beyond it a new one is closed at once."""

WRITE_MAX_BYTES = 64 * 1024 * 1024
"""Unsent bytes at which a connection is cut: four of the largest frames, which only pushed or pipelined answers can pile up."""

TIMER_MAX_MS = 1_000
"""Longest single sleep: what waits for a date comes this much late, at most, after the clock was set past it."""

STEP_LOGGED_MS = 1_000
"""Clock steps are logged once they add up to this."""

HELD_AGAIN_S = 60.0
"""A clock that is held back goes on losing time; after this long without a loss it was set back anew."""

TIMER_SLACK_MS = 16
"""How much later than the core wants the timer may ring. A turn that leaves it set for so soon need not ask: asking all services
of a broker costs a tenth of a turn that holds one small send."""

FAILED_TURN_S = 1.0
"""How soon after a turn that failed another comes by itself: connections that have asked may say nothing more."""

WORK_THREADS = 4
"""Threads for `Work`: they only wait for the device."""


class OperationDriver(Protocol):
    """Driver of operations on this event loop: `halfmoon.runtime.drivers.asyncio_driver.AsyncioDriver`."""

    def spawn(self, operation: Any, name: str = "") -> Any:
        """Start an operation that goes on by itself."""

    def run(self, operation: Any) -> Coroutine[Any, Any, Any]:
        """Drive an operation to its end."""


class Server:
    """A core with sockets.

    ``listeners`` are pairs of host and port; port 0 takes a free one. A core that must know its port may be set as ``core`` between
    `bind` and `start`. ``driver`` carries out `Start` and the operations of a clean stop; without one the core must leave none.
    ``busy_poll_us``: see `halfmoon.runtime.server.busy_polling`. ``certificates``: what the ports speak besides plain text;
    ``proxies``: who may say for whom it connects. ``connections_max`` may be open, ``connections_per_address_max`` of one address
    (0: all).
    All methods belong to one event loop.
    """

    reload_s = RELOAD_S
    failed_turn_s = FAILED_TURN_S

    def __init__(
        self,
        core: Core,
        listeners: Sequence[Address],
        clock: Clock,
        driver: OperationDriver | None = None,
        *,
        connections_max: int = CONNECTIONS_MAX,
        connections_per_address_max: int = PER_ADDRESS_MAX,
        write_max_bytes: int = WRITE_MAX_BYTES,
        busy_poll_us: int = BUSY_POLL_US,
        certificates: Certificates | None = None,
        proxies: Networks | None = None,
    ) -> None:
        self.busy_poll_us, self.certificates, self.proxies = busy_poll_us, certificates, proxies
        self.opening: Handshakes | None = None
        self.core, self.listeners, self.clock, self.driver = core, list(listeners), clock, driver
        self.connections_max, self.write_max_bytes = connections_max, write_max_bytes
        self._connections_per_address_max = connections_per_address_max
        self.bound: list[Address] = []
        self.feed: Feed = core.feed
        self.on_turn: Callable[[int], None] | None = None
        """Called after each turn with how many milliseconds it took, its replies included."""
        self.valid: Callable[[], bool] | None = None
        """Whether the core may answer at all, asked before anything is sent; once it may not, it is not heard again."""
        self.turn_times: TurnTimes | None = None
        """Where how long turns take is counted; None: nobody asks."""
        self._sockets: list[socket.socket] = []
        self._acceptor: Acceptor | None = None
        self._connections: dict[int, ServerConnection] = {}
        self._numbers = count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: ThreadPoolExecutor | None = None
        self.turn_is_due = False
        self.last_fed = 0
        self._works_running = 0
        self._works_done = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._due_at = LONG_AGO
        self._turn_again: asyncio.TimerHandle | None = None
        self._has_ended = False
        self._ahead_ns = clock.ahead_ns
        self._held_s: float | None = None
        self._background: set[Any] = set()
        self._watching: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ life

    async def bind(self) -> list[Address]:
        """Take the ports without listening yet, and return the addresses really bound, so that a core can be told them first.

        Raises:
            OSError: an address is in use or not ours.
        """
        if not self._sockets:
            try:
                for host, port in self.listeners:
                    await self.take(host, port)
            except OSError:
                self._close_sockets()
                raise
        return self.bound

    async def take(self, host: str, port: int) -> Address:
        """Take one more port before the start, and return the address really bound. Raises OSError."""
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self._sockets.append(bound_socket(addresses))
        self.bound.append(cast(Address, self._sockets[-1].getsockname()[:2]))
        return self.bound[-1]

    async def start(self) -> list[Address]:
        """Listen, start the core and return the addresses really bound. Raises OSError."""
        await self.bind()
        self.feed = self.core.feed
        self._loop = asyncio.get_running_loop()
        self.busy_polling = BusyPolling(self._loop.call_soon, busy_poll_us=self.busy_poll_us)
        self._pool = ThreadPoolExecutor(WORK_THREADS, thread_name_prefix="halfmoon-work")
        certificates = self.certificates if self.certificates and self.certificates.context else None
        if certificates is not None or self.proxies is not None:
            self.opening = Handshakes(self._loop, certificates, self.proxies)
        if certificates is not None:
            self._watching = self._loop.create_task(self._watch_certificates(certificates))
        for sock in self._sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that end stand in no later start's way
        room = min(self.connections_max, connections_limit(allowed_descriptors()))
        self.places = Places(self._loop, room, self._connections_per_address_max)
        self._acceptor = Acceptor(self._loop, self._sockets, self._admitted, lambda: len(self._connections), self.connections_max)
        self.core.start(self.clock.instant())
        self.wake()
        return self.bound

    async def stop(self, within_ms: int = STOP_MS) -> None:
        """Stop cleanly: no new connections, the core's last operations driven to their end, its last works done, all closed.

        After ``within_ms`` what is not done is left. A server that never started only gives its ports back.
        """
        if self._loop is None:
            self._close_sockets()
            return
        if self._acceptor is not None:
            self._acceptor.close()
        self._sockets.clear()
        if self._watching is not None:
            self._watching.cancel()
        self.places.close()
        if self.opening is not None:
            self.opening.close()
        deadline = self._loop.time() + within_ms / 1000
        operations = self.core.stop(self.clock.instant())
        self.turn()
        if operations:
            await self._drive_last(operations, deadline)
        self.turn()
        await self._await_works(deadline)
        await self._close_connections()
        if self._timer is not None:
            self._timer.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=not self._works_running, cancel_futures=True)
        if self._turn_again is not None:
            self._turn_again.cancel()
        self._has_ended = True

    async def _drive_last(self, operations: Sequence[Any], deadline: float) -> None:
        assert self.driver is not None, "a core that leaves operations needs a driver"
        assert self._loop is not None
        endings = [asyncio.ensure_future(self.driver.run(supervised(operation, self.wake))) for operation in operations]
        done, pending = await asyncio.wait(endings, timeout=deadline - self._loop.time())
        for task in pending:
            task.cancel()
        for task in done:
            if not task.cancelled() and task.exception() is not None:
                log.error("an operation of the clean stop failed", exc_info=task.exception())

    async def _await_works(self, deadline: float) -> None:
        """Wait until no work runs: the end of one may start others."""
        assert self._loop is not None
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while self._works_running:
                    self._works_done.clear()
                    await self._works_done.wait()

    async def abort(self) -> None:
        """End as a killed process does: the core hears nothing more. A server that never started gives its ports back."""
        self.core = NullCore()
        await self.stop(0)

    def join(self) -> None:
        """Wait, after the end, for works that threads still carry out: from then on none of them changes anything. Blocks."""
        if self._pool is not None:
            self._pool.shutdown()

    async def _close_connections(self) -> None:
        for connection in list(self._connections.values()):
            connection.transport.close()
        for _ in range(100):  # what was written may still be on its way out
            if not self._connections:
                return
            await asyncio.sleep(0.01)
        for connection in list(self._connections.values()):
            connection.transport.abort()
        await asyncio.sleep(0)

    def _close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        self.bound.clear()

    # ------------------------------------------------------------ turns

    def wake(self) -> None:
        """See to it that a turn comes: whoever changed the core from outside a turn calls this."""
        if not self.turn_is_due and self._loop is not None:
            self.turn_is_due = True
            self._loop.call_soon(self.turn)

    def _log_steps(self) -> None:
        """Log when the system's clock was set since the last call."""
        assert self._loop is not None
        by_ms = (self.clock.ahead_ns - self._ahead_ns) // 1_000_000
        if abs(by_ms) < STEP_LOGGED_MS:
            return
        self._ahead_ns = self.clock.ahead_ns
        if by_ms > 0:
            log.warning(
                "the system's clock was set forward by %.1f s: only what is due at a date is affected, timeouts are not",
                by_ms / 1000,
            )
        else:
            previous, self._held_s = self._held_s, self._loop.time()
            if previous is None or self._held_s - previous > HELD_AGAIN_S:
                log.warning("the system's clock was set back: the server's clock runs at half speed until it has caught up")

    def turn(self) -> None:
        """Have the core do what all connections brought, and carry out what it wants."""
        self.turn_is_due = False
        if self._has_ended:  # asked for by a connection that was cut at the end: the core has given back what it works with
            return
        now = self.clock.instant()
        began_ns = self.clock.seen_ns
        try:
            if self.core.commit(now):  # it stopped half-way, so that answers leave before more is done
                self._carry_out(now)
                if self.core.commit(now):  # one connection asks for more than others should wait for
                    self.wake()
        except Exception:  # our own mistake: the other connections shall not feel it
            log.exception("a turn of the core failed")
            if self._turn_again is None and self._loop is not None:
                self._turn_again = self._loop.call_later(self.failed_turn_s, self._try_again)
        self._carry_out(now)
        took_ns = self.clock.passed_ns(began_ns)
        if self.on_turn is not None:
            self.on_turn(took_ns // 1_000_000)
        if (times := self.turn_times) is not None:  # what `TurnTimes.took` does: the call would cost as much again
            times.counts[(took_ns >> 16).bit_length()] += 1
            times.total += took_ns

    def _try_again(self) -> None:
        self._turn_again = None
        self.wake()

    def _ring(self) -> None:
        self._timer = None
        now = self.clock.instant()
        self._log_steps()
        if now.steady >= self._due_at:
            try:
                self.core.tick(now)
            except Exception:
                log.exception("a tick of the core failed")
        self._carry_out(now)

    def _set_timer(self, now: Instant) -> None:
        """Keep one timer that rings when the core wants, or a little off: early is harmless and saves setting it each turn."""
        due = self.core.due(now)
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        assert self._loop is not None
        wait_ms = min(max(due - now.steady, 0), TIMER_MAX_MS)
        self._timer_at, self._due_at = now.steady + wait_ms, due
        self._timer = self._loop.call_later(wait_ms / 1000, self._ring)

    # ------------------------------------------------------------ effects

    def _carry_out(self, now: Instant) -> None:
        if self.valid is not None and not self.valid():
            self._silence()
            return
        connections = self._connections
        more = True
        while more:  # the end of a work may leave more; a write never does
            more = False
            for effect in self.core.effects():
                kind = type(effect)
                if kind is Write:
                    if (connection := connections.get(effect.peer)) is not None:  # type: ignore[union-attr]
                        connection.write(effect.chunks)  # type: ignore[union-attr]
                elif kind is Work:
                    more |= self._work(cast("Work[Any]", effect))
                elif kind is Close:
                    if (connection := connections.get(effect.peer)) is not None:  # type: ignore[union-attr]
                        connection.close(effect.reason)  # type: ignore[union-attr]
                else:
                    self._start(cast(Start, effect))
        if self._timer is None or self._timer_at - now.steady > TIMER_SLACK_MS:
            self._set_timer(now)

    def _silence(self) -> None:
        """Send nothing more: connections are cut, and what the core wants is left."""
        if not isinstance(self.core, NullCore):
            log.error("nothing more is answered: this server may not answer any longer")
            self.core = NullCore()
            self.feed = self.core.feed
        for connection in list(self._connections.values()):
            connection.transport.abort()

    def _start(self, start: Start) -> None:
        assert self.driver is not None, "a core that starts operations needs a driver"
        handle = self.driver.spawn(supervised(start.operation, self.wake), start.name)
        if isinstance(handle, asyncio.Future):  # the loop itself keeps only weak references to tasks
            self._background.add(handle)
            handle.add_done_callback(self._background.discard)

    def _work(self, work: Work[Any]) -> bool:
        """Run a work here, or hand it to a thread; return whether it has ended."""
        if work.inline or self._pool is None:
            self._finish(work, _outcome(work))
            return True
        self._works_running += 1
        self._pool.submit(self._work_in_thread, work)
        return False

    def _work_in_thread(self, work: Work[Any]) -> None:
        outcome = _outcome(work)
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._worked, work, outcome)
        except RuntimeError:
            log.warning("the event loop ended before an operation was finished: %s", work.name)

    def _worked(self, work: Work[Any], outcome: Any) -> None:
        self._works_running -= 1  # here, in the loop: threads never touch it
        if self._has_ended:
            log.warning("the server ended before an operation was finished: %s", work.name)
            return
        self._finish(work, outcome)
        self._carry_out(self.clock.instant())
        if not self._works_running:
            self._works_done.set()

    def _finish(self, work: Work[Any], outcome: Any) -> None:
        try:
            work.done(outcome, self.clock.instant())
        except Exception:
            log.exception("the end of a work failed: %s", work.name)

    async def _watch_certificates(self, certificates: Certificates) -> None:
        while True:
            await asyncio.sleep(self.reload_s)
            try:
                await asyncio.get_running_loop().run_in_executor(self._pool, certificates.refresh)
            except Exception:  # whatever it was, later certificates are noticed
                log.exception("TLS: looking at the files of certificates failed")

    # ------------------------------------------------------------ connections

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def _admitted(self, remote: str) -> ServerConnection | None:
        """Return what reads a connection from an address; None: it has too many. A proxy's count as those for whom it connects."""
        may_be_proxied = self.opening is not None and self.opening.may_be_proxied(remote)
        if may_be_proxied or self.places.take(remote):
            return ServerConnection(self, remote, is_counted=not may_be_proxied)
        return None

    def accept(self, connection: ServerConnection) -> int:
        """Count a new connection and return its number."""
        peer = next(self._numbers)  # never used twice: an effect for one that is gone must reach nobody
        self._connections[peer] = connection
        return peer

    def introduce(self, peer: int, remote: str) -> None:
        """Tell the core of a new connection."""
        self.core.connected(peer, remote, self.clock.instant())
        self.wake()

    def certified(self, peer: int, names: tuple[str, ...]) -> None:
        """Tell the core whose certificate a connection showed."""
        self.core.certified(peer, names)

    def slow(self, peer: int, *, is_slow: bool) -> None:
        """Tell the core that a connection does not read what it is sent, or does again."""
        self.core.slow(peer, is_slow=is_slow)

    def unanswered(self, peer: int) -> bool:
        """Return whether the core has requests of a connection that it did not answer yet."""
        return self.core.unanswered(peer)

    def drop(self, peer: int, *, is_known: bool) -> None:
        """Forget a connection that is gone, and tell the core if it knows it."""
        if self._connections.pop(peer, None) is not None and is_known and not self._has_ended:
            self.core.lost(peer, self.clock.instant())
            self.wake()


def _outcome(work: Work[Any]) -> Any:
    try:
        return work.run()
    except Exception as exc:
        return exc
