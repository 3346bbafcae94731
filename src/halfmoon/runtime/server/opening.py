"""Handshakes and proxy preambles of new connections: order, deadlines and bounds. Reads no socket."""

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
from halfmoon.settings.networks import Networks
from halfmoon.settings.tls import TlsMode

HANDSHAKE_S = 10.0
"""Longest duration of a handshake from its first byte, and of a proxy's preamble. Follows SslHandler of Netty."""

HANDSHAKES_MAX = 1024
"""Bound of concurrent handshakes and preambles, under 50 KiB each and up to 256 KiB of waiting bytes.

Above the bound, the oldest one of the address with most of them is closed."""

STEPS_A_TURN = 8
"""Handshake steps in one turn of the loop. The first step of each takes 0.2 (P-256) to 0.5 ms (RSA 2048), which delays all
connections."""


class OpeningConnection(Protocol):
    """Interface of a connection (`halfmoon.runtime.server.connection.ServerConnection`) from the address ``remote``."""

    remote: str

    def shake(self, data: bytes) -> None:
        """Take bytes of the handshake."""

    def hold(self) -> None:
        """Stop reading until `shake` is called."""

    def refuse(self, reason: str) -> None:
        """Log the reason, and close the connection."""

    def late(self) -> None:
        """Handle the end of its time."""


class Handshakes:
    """Handshakes and preambles of one event loop, with one timer for all deadlines. ``proxies`` may send preambles."""

    handshake_s = HANDSHAKE_S
    handshakes_max = HANDSHAKES_MAX
    steps_a_turn = STEPS_A_TURN

    def __init__(self, loop: asyncio.AbstractEventLoop, certificates: Certificates | None, proxies: Networks | None = None) -> None:
        self._loop, self._certificates, self._proxies = loop, certificates, proxies
        self._deadlines: dict[OpeningConnection, tuple[float, str]] = {}
        """Connections in order of their start and thus of their deadline, each with the address where it counts."""
        self._by_place: dict[str, dict[OpeningConnection, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._steps = 0
        self._held: dict[OpeningConnection, bytes] = {}
        """Connections that wait for a further turn, in order, with their received bytes."""
        self.log = Refusals(loop)

    @property
    def count(self) -> int:
        """Return how many connections have not ended their handshake or preamble."""
        return len(self._deadlines)

    @property
    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of the next connection; None: TLS is off."""
        return None if self._certificates is None else self._certificates.context

    @property
    def takes_plain(self) -> bool:
        """Return whether plain text is accepted, too."""
        return self._certificates is None or self._certificates.mode is not TlsMode.ENFORCING

    def may_be_proxied(self, remote: str) -> bool:
        """Return whether a connection from an address may begin with a preamble."""
        return self._proxies is not None and self._proxies.hold_peer(remote)

    def begin(self, connection: OpeningConnection) -> None:
        """Note the start of a handshake or of the wait for a preamble."""
        self._end(connection)
        if len(self._deadlines) >= self.handshakes_max:
            most = max(self._by_place.values(), key=len)
            oldest = next(iter(most))
            self._end(oldest)
            oldest.refuse(f"over {self.handshakes_max} handshakes at a time, and this is the oldest of the address that has most")
        place = place_of(connection.remote)
        self._deadlines[connection] = self._loop.time() + self.handshake_s, place
        self._by_place.setdefault(place, {})[connection] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self.handshake_s, self._look)

    def step(self, connection: OpeningConnection, data: bytes) -> None:
        """Let a connection take bytes of its handshake: now, or in a further turn once this turn had its share."""
        if connection in self._held:
            self._held[connection] += data
        elif self._steps < self.steps_a_turn:
            self._take(connection, data)
        else:
            self._held[connection] = data
            connection.hold()

    def _take(self, connection: OpeningConnection, data: bytes) -> None:
        if not self._steps:
            self._loop.call_soon(self._next_turn)
        self._steps += 1
        connection.shake(data)

    def _next_turn(self) -> None:
        self._steps = 0
        for connection in list(islice(self._held, self.steps_a_turn)):
            self._take(connection, self._held.pop(connection))

    def over(self, connection: OpeningConnection) -> bool:
        """Note the end of a handshake or of its connection; return whether a handshake was under way."""
        self._held.pop(connection, None)
        return self._end(connection)

    def _end(self, connection: OpeningConnection) -> bool:
        found = self._deadlines.pop(connection, None)
        if found is None:
            return False
        of_place = self._by_place[found[1]]
        del of_place[connection]
        if not of_place:
            del self._by_place[found[1]]
        return True

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Close connections whose deadline has passed, and set the timer for the next one."""
        self._timer, now = None, self._loop.time()
        late = [connection for connection, (deadline, _) in self._deadlines.items() if deadline <= now]
        for connection in late:
            self._end(connection)
            connection.late()
        if self._deadlines:
            self._timer = self._loop.call_at(next(iter(self._deadlines.values()))[0], self._look)


class Refusals:
    """Rate-limited warnings that unknown clients can cause, by the loop's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._log = RateLimitedLog(logging.getLogger("halfmoon.serve"), self._now())

    def warning(self, text: str, *arguments: object) -> None:
        """Log a warning, or count it once the lines of this minute are used up."""
        self._log.tick(self._now())
        self._log.warning(text, *arguments)

    def _now(self) -> Steady:
        return Steady(int(self._loop.time() * 1000))
