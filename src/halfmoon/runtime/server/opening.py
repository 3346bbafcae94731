"""What a server whose port takes more than plain text asks of new connections, and who is still at it. Reads no socket."""

from __future__ import annotations

import asyncio
import logging
import ssl
from itertools import islice
from typing import Protocol

from halfmoon.instant import Steady
from halfmoon.logs import RateLimitedLog
from halfmoon.runtime.server.certificates import Certificates
from halfmoon.runtime.server.places import place_of
from halfmoon.runtime.server.proxy_protocol import Proxies
from halfmoon.settings.tls import TlsMode

HANDSHAKE_S = 10.0
"""How long a handshake may take from its first byte on, and a proxy for its preamble. Follows SslHandler of Netty."""

HANDSHAKES_MAX = 1024
"""Handshakes and preambles at a time, under 50 KiB each and up to 256 KiB of bytes that wait for its turn; when one more begins,
the oldest is cut of the address that has most: who begins them by the thousand cuts its own."""

STEPS_A_TURN = 8
"""Steps of handshakes in one turn of the loop. The first of each costs 0.2 (P-256) to 0.5 ms (RSA 2048), for which
all that are connected wait."""


class Opened(Protocol):
    """A connection (`halfmoon.runtime.server.connection.Connection`) from the address ``remote``."""

    remote: str

    def shake(self, data: bytes) -> None:
        """Take bytes of its handshake."""

    def hold(self) -> None:
        """Read no more until `shake` is called."""

    def refuse(self, reason: str) -> None:
        """Log why it is not taken, and close it."""

    def late(self) -> None:
        """Its time is over."""


class Opening:
    """Belongs to one event loop; one timer watches all that have a deadline. ``proxies`` may say for whom they connect."""

    def __init__(self, loop: asyncio.AbstractEventLoop, certificates: Certificates | None, proxies: Proxies | None = None) -> None:
        self._loop, self._certificates, self._proxies = loop, certificates, proxies
        self._deadlines: dict[Opened, tuple[float, str]] = {}
        """In the order in which they began, which is that of their ends; and the place where each counts."""
        self._by_place: dict[str, dict[Opened, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._steps = 0
        self._held: dict[Opened, bytes] = {}
        """Who waits for a further turn, in order, with what it sent until then."""
        self.log = Refusals(loop)

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS of the next connection; None: TLS is off."""
        return None if self._certificates is None else self._certificates.context

    @property
    def takes_plain(self) -> bool:
        """Whether plain text is taken, too."""
        return self._certificates is None or self._certificates.mode is not TlsMode.ENFORCING

    def may_be_proxied(self, remote: str) -> bool:
        """Whether who connects from an address may begin with a preamble."""
        return self._proxies is not None and self._proxies.trusts(remote)

    def begin(self, connection: Opened) -> None:
        """A handshake begins, or a preamble is waited for."""
        self._end(connection)
        if len(self._deadlines) >= HANDSHAKES_MAX:
            most = max(self._by_place.values(), key=len)
            oldest = next(iter(most))
            self._end(oldest)
            oldest.refuse(f"over {HANDSHAKES_MAX} handshakes at a time, and this is the oldest of the address that has most")
        place = place_of(connection.remote)
        self._deadlines[connection] = self._loop.time() + HANDSHAKE_S, place
        self._by_place.setdefault(place, {})[connection] = None
        if self._timer is None:
            self._timer = self._loop.call_later(HANDSHAKE_S, self._look)

    def step(self, connection: Opened, data: bytes) -> None:
        """Have a connection take bytes of its handshake: now, or in a further turn of the loop where this one had its share."""
        if connection in self._held:
            self._held[connection] += data
        elif self._steps < STEPS_A_TURN:
            self._take(connection, data)
        else:
            self._held[connection] = data
            connection.hold()

    def _take(self, connection: Opened, data: bytes) -> None:
        if not self._steps:
            self._loop.call_soon(self._next_turn)
        self._steps += 1
        connection.shake(data)

    def _next_turn(self) -> None:
        self._steps = 0
        for connection in list(islice(self._held, STEPS_A_TURN)):
            self._take(connection, self._held.pop(connection))

    def over(self, connection: Opened) -> bool:
        """A handshake ended, or the connection did; return whether a handshake was under way."""
        self._held.pop(connection, None)
        return self._end(connection)

    def _end(self, connection: Opened) -> bool:
        found = self._deadlines.pop(connection, None)
        if found is None:
            return False
        of_place = self._by_place[found[1]]
        del of_place[connection]
        if not of_place:
            del self._by_place[found[1]]
        return True

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Cut those whose time is over, and look again when that of the next one is."""
        self._timer, now = None, self._loop.time()
        late = [connection for connection, (deadline, _) in self._deadlines.items() if deadline <= now]
        for connection in late:
            self._end(connection)
            connection.late()
        if self._deadlines:
            self._timer = self._loop.call_at(next(iter(self._deadlines.values()))[0], self._look)


class Refusals:
    """Warnings that strangers can cause, by the loop's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._log = RateLimitedLog(logging.getLogger("halfmoon.serve"), self._now())

    def warning(self, text: str, *arguments: object) -> None:
        """Write a warning, or count it if this minute has had its lines."""
        self._log.tick(self._now())
        self._log.warning(text, *arguments)

    def _now(self) -> Steady:
        return Steady(int(self._loop.time() * 1000))
