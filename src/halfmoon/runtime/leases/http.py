"""One request of HTTP to the store of a lease, with JSON both ways, on a connection of its own, within a deadline."""

from __future__ import annotations

import io
import socket
import ssl
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple

import msgspec

from halfmoon.errors import LeaseUnavailable
from halfmoon.runtime.leases.addresses import Resolver
from halfmoon.runtime.leases.deadline import Deadline
from halfmoon.runtime.tls import client_reason

REPLY_BYTES_MAX = 4 * 1024 * 1024
"""A record takes 88 KiB in base64; an object of Kubernetes has 1.5 MiB at most."""


class NotSent(LeaseUnavailable):
    """The request did not leave: it is certain that it was not carried out."""


class Endpoint(NamedTuple):
    """Server of HTTP; with TLS, where a context is given."""

    host: str
    port: int
    context: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Request(NamedTuple):
    """Request of HTTP. ``path`` is quoted; no ``body``: none is sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any] | None = None


class Reply(NamedTuple):
    """Reply of HTTP: its status and the JSON object in it; an empty one, where it is none."""

    status: int
    body: dict[str, Any]


def exchange(endpoint: Endpoint, request: Request, resolver: Resolver, deadline: Deadline, connecting: Deadline) -> Reply:
    """Send a request and return its reply. ``connecting`` is the deadline of the connection, not after ``deadline``.

    Raises:
        NotSent: there is no connection.
        LeaseUnavailable: there is no reply; the request may have been carried out, or will be.
    """
    with closing(_connected(endpoint, resolver, connecting)) as connected:
        try:
            connection = HTTPConnection(endpoint.host, endpoint.port)
            connection.sock = _Bounded(connected, deadline)
            body = None if request.body is None else msgspec.json.encode(request.body)
            connection.request(request.method, request.path, body, {**request.headers, "Connection": "close"})
            reply = connection.getresponse()
            data = reply.read(REPLY_BYTES_MAX + 1)
        except TimeoutError:
            raise deadline.passed() from None
        except (OSError, HTTPException, ValueError) as exc:
            reason = client_reason(exc) or getattr(exc, "strerror", None) or f"it answers no HTTP ({type(exc).__name__})"
            raise LeaseUnavailable(f"{endpoint}: the connection broke: {reason}", str(endpoint)) from None
    if len(data) > REPLY_BYTES_MAX or reply.length:  # a length that is left: the stream ended before the body
        reason = f"has more than {REPLY_BYTES_MAX} bytes" if len(data) > REPLY_BYTES_MAX else "is not whole"
        raise LeaseUnavailable(f"{endpoint}: the reply {reason}", str(endpoint))
    return Reply(reply.status, _object(data))


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _connected(endpoint: Endpoint, resolver: Resolver, deadline: Deadline) -> socket.socket:
    """Return a connection to the first address of a host that takes one. Raises NotSent."""
    failure = ""
    try:
        addresses = resolver.addresses(endpoint.host, deadline)
        for left, address in zip(range(len(addresses), 0, -1), addresses):
            share = deadline.share(left, deadline.address)
            try:
                connected = socket.create_connection((address, endpoint.port), share.left_s())
            except OSError as exc:
                failure = exc.strerror or f"no connection within {share.timeout_ms} ms"
                continue
            return _encrypted(connected, endpoint, deadline)
    except LeaseUnavailable as exc:
        raise NotSent(str(exc), exc.address) from None
    raise NotSent(f"{endpoint}: {failure}", str(endpoint))


def _encrypted(connected: socket.socket, endpoint: Endpoint, deadline: Deadline) -> socket.socket:
    if endpoint.context is None:
        return connected
    try:
        connected.settimeout(deadline.left_s())
        return endpoint.context.wrap_socket(connected, server_hostname=endpoint.host)
    except (OSError, ValueError) as exc:
        connected.close()
        reason = client_reason(exc) or getattr(exc, "strerror", None) or "TLS: no handshake in time"
        raise NotSent(f"{endpoint}: {reason}", str(endpoint)) from None
    except BaseException:
        connected.close()
        raise


class _Bounded(io.RawIOBase):
    """Socket of an HTTPConnection whose reads and writes all end at one deadline, however slowly bytes come."""

    def __init__(self, connected: socket.socket, deadline: Deadline) -> None:
        self._socket, self._deadline = connected, deadline

    def readable(self) -> bool:
        """Return whether it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there into a buffer, and return how much."""
        self._socket.settimeout(self._deadline.left_s())
        return self._socket.recv_into(buffer)

    def sendall(self, data: bytes) -> None:
        """Send all bytes."""
        self._socket.settimeout(self._deadline.left_s())
        self._socket.sendall(data)

    def close(self) -> None:
        """Leave it open, for an HTTPConnection closes it before the reply is read whole. Its owner closes the socket."""

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return the file that HTTPResponse reads."""
        return io.BufferedReader(self)
