"""Connections of browsers: each request has a time limit, and a silent connection is closed for a new one."""

from __future__ import annotations

import asyncio
import ssl

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

REQUESTS_MAX = 200
"""Most requests at a time, and most connections."""
WAIT_S = 10.0
"""Longest wait for a request, from its first byte or the answer before to the end of its headers."""
REQUEST_S = 300.0
"""How long a request may take, its body and the answer included: some 14 KB a second for the largest body."""


class BrowserConnection(H11Protocol):
    """Connection of a browser.

    If all are taken, the one that has waited longest for a request, or for the rest of one, is closed for a new one: nobody keeps
    others out by half of a form.

    uvicorn alone waits for ever for the first request and for the rest of its headers, and counts all who wait as busy. It knows
    nothing of connections before they have shaken hands, and asyncio bounds neither them nor its log: in a subclass that has a
    ``context``, they speak TLS.
    """

    context: ssl.SSLContext | None = None
    wait_s, request_s = WAIT_S, REQUEST_S
    _handshake: asyncio.Task[None]
    _early = b""
    _deadline: asyncio.TimerHandle
    _serving: RequestResponseCycle | None = None
    _since_s: float

    @property
    def _is_waiting(self) -> bool:
        """Whether the browser has to send something: a request, or the rest of one."""
        return self._serving is None or self._serving.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn says it
        """Accept the connection, close another for it if there are too many, and wait for a request."""
        if len(self.connections) >= REQUESTS_MAX - 1:
            waiting = [other for other in self.connections if isinstance(other, BrowserConnection) and other._is_waiting]
            if waiting:
                min(waiting, key=lambda other: other._since_s)._drop()
        self.transport = transport
        self._since_s = self.loop.time()
        self._deadline = self.loop.call_later(self.wait_s, transport.abort)
        if self.context is None:
            super().connection_made(transport)
            return
        self.connections.add(self)
        transport.pause_reading()
        self._handshake = self.loop.create_task(self._shake_hands(transport, self.context))

    async def _shake_hands(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        try:
            secure = await self.loop.start_tls(transport, self, context, server_side=True, ssl_handshake_timeout=self.wait_s)
        except OSError:  # SSLError is one
            secure = None
        if secure is None:
            self._drop()
        elif not transport.is_closing():
            super().connection_made(secure)
            if self._early:
                self.data_received(self._early)

    def _drop(self) -> None:
        self.transport.abort()
        self.connections.discard(self)  # else it counts until the event loop comes to it

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if self.flow is None:  # it came with the end of the handshake, before its task was told
            self._early += data
            return
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limit."""
        self._deadline.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Restart the time limit if a request has begun or ended; single bytes do not."""
        serving = None if self.cycle is None or self.cycle.response_complete else self.cycle
        if serving is not self._serving:
            self._serving, self._since_s = serving, self.loop.time()
            self._deadline.cancel()
            self._deadline = self.loop.call_later(self.request_s if serving else self.wait_s, self.transport.abort)
