"""Parts of all outgoing connections: blocking sockets whose waits the system bounds, and errors in the system's own words."""

from __future__ import annotations

import socket
import ssl
from errno import ECONNREFUSED
from os import strerror
from struct import Struct

from halfmoon.errors import ConnectFailed, ConnectionLost, RequestTimeout
from halfmoon.model import split_address
from halfmoon.runtime.connections.encrypted import EncryptedSocket, OutgoingTls
from halfmoon.runtime.tls import HUNG_UP, client_reason

CONNECT_TIMEOUT_MS = 3_000
PROBES = 20
"""Probes without an answer after which a connection is lost: what passes sooner, such as a switch that restarts, costs nothing."""
_PROTOCOLS = {b"HTTP/": "HTTP", b"SSH-": "SSH", b"\x15\x03": "TLS"}
"""Protocols by the beginnings of answers."""
_TIMEVAL = Struct("@ll")


BlockingSocket = socket.socket | EncryptedSocket


def connect(address: str, timeout_ms: int, tls: OutgoingTls | None = None) -> BlockingSocket:
    """Return a new connection, made within ``timeout_ms`` and `CONNECT_TIMEOUT_MS`; see `limit_waits`. Raises ConnectFailed.

    With ``tls`` its handshake may take as long again.
    """
    timeout_s = min(timeout_ms, CONNECT_TIMEOUT_MS) / 1000
    try:
        sock = socket.create_connection(split_address(address), timeout_s)
        try:
            send_at_once(sock)
            if tls is not None:
                return _encrypted(sock, tls, address)
            sock.settimeout(None)  # Python's own time-outs cost a call before each read; the system's cost none
        except BaseException:
            sock.close()
            raise
    except OSError as exc:
        raise connect_failed(address, exc) from exc
    return sock


def _encrypted(sock: socket.socket, tls: OutgoingTls, address: str) -> EncryptedSocket:
    try:
        return EncryptedSocket(sock, tls, address)
    except ConnectionError as exc:
        raise connect_failed(address, HUNG_UP) from exc


def send_at_once(sock: socket.socket) -> None:
    """Have small requests leave without waiting for the answer to the one before (no Nagle)."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def notice_restarts(sock: socket.socket) -> None:
    """Have the system ask a silent peer whether it is there, each second: a machine that lost its power comes back without a word.

    One that answers nothing at all counts as gone after `PROBES` of them, some seconds.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", PROBES)):
        if hasattr(socket, name):  # not on every platform
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def limit_waits(sock: BlockingSocket, timeout_ms: int) -> None:
    """Bound each later read and write of a blocking socket; one that is late raises BlockingIOError."""
    if isinstance(sock, EncryptedSocket):
        sock.settimeout(timeout_ms / 1000)
        return
    limit = _TIMEVAL.pack(timeout_ms // 1000, timeout_ms % 1000 * 1000)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def is_open(sock: BlockingSocket) -> bool:
    """Whether the peer has an idle connection open, as far as this side was told."""
    if isinstance(sock, EncryptedSocket):
        return sock.is_open()
    try:
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False  # closed, or there are bytes that nobody asked for


def connect_failed(address: str, cause: BaseException | str) -> ConnectFailed:
    """Return the error of a connection that could not be made."""
    error = ConnectFailed(f"connect to {address} failed: {cause if isinstance(cause, str) else _reason(cause)}", address)
    error.refused = getattr(cause, "errno", None) == ECONNREFUSED
    return error


def connection_lost(address: str, reason: BaseException | str) -> ConnectionLost:
    """Return the error of a connection that ended while somebody waited for an answer."""
    return ConnectionLost(f"connection to {address} lost: {client_reason(reason) or reason}", address)


def no_frame(begin: bytes, fault: object) -> str:
    """Return why a connection ends whose peer sent ``begin``, which is no frame: most often it is another kind of server."""
    protocol = next((name for sign, name in _PROTOCOLS.items() if begin.startswith(sign)), None)
    what = f"it sent bytes that are no frame: {fault}" if protocol is None else f"it speaks {protocol}, not RocketMQ's protocol"
    return f"{what} (wrong port?)"


def request_timeout(address: str, timeout_ms: int) -> RequestTimeout:
    """Return the error of a request that was not answered in time."""
    return RequestTimeout(f"no answer from {address} within {timeout_ms:,} ms", address)


def _reason(cause: BaseException) -> str:
    if isinstance(cause, ssl.SSLError):
        return client_reason(cause) or str(cause)
    number = getattr(cause, "errno", None)
    if isinstance(cause, TimeoutError) and not number:
        return "timeout"
    if isinstance(number, int) and number > 0:
        return strerror(number)
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
