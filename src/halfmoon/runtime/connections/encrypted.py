"""TLS of the connections that we make: what it asks of whom, and a blocking socket that speaks it. Knows no frames."""

from __future__ import annotations

import socket
import ssl

from halfmoon.model import split_address
from halfmoon.runtime.tls import ClientTls

_AT_ONCE, _ALL = socket.MSG_DONTWAIT, socket.MSG_WAITALL


class OutgoingTls:
    """The TLS of one client's connections. Raises SettingError when certificates do not load.

    ``local`` are addresses of servers in this very process: what is sent there does not leave the machine, so they need not prove
    who they are.
    """

    def __init__(self, tls: ClientTls, local: frozenset[str] = frozenset()) -> None:
        self._context, self._name = tls.context(), tls.server_name
        self._local_context = tls._replace(verify=False).context() if local else None
        self._local = local

    def context(self, address: str) -> ssl.SSLContext:
        """Return the context for a connection to an address."""
        if self._local_context is not None and address in self._local:
            return self._local_context
        return self._context

    def name(self, address: str) -> str:
        """Return what the certificate of the server at an address must be made for: a name of a host, or an IP address."""
        return self._name or split_address(address)[0]


class EncryptedSocket:
    """A connected blocking socket with TLS, as far as `runtime.connections` use sockets.

    Closes the socket when the handshake fails. Late reads and writes raise BlockingIOError, as those of a plain socket with a
    time-out of the system do. Raises OSError, ssl.SSLError among them.
    """

    def __init__(self, sock: socket.socket, tls: OutgoingTls, address: str) -> None:
        try:
            self._tls = tls.context(address).wrap_socket(sock, server_hostname=tls.name(address))
        except BaseException:
            sock.close()
            raise
        self._timeout_s = self._tls.gettimeout()

    def settimeout(self, timeout_s: float) -> None:
        """Bound each later read and write."""
        self._timeout_s = timeout_s
        self._tls.settimeout(timeout_s)

    def sendall(self, data: bytes) -> None:
        """Send everything."""
        try:
            self._tls.sendall(data)
        except TimeoutError as exc:
            raise BlockingIOError(*exc.args) from exc

    def send(self, data: bytes, flags: int = 0) -> int:
        """Send what goes without waiting (``flags`` is MSG_DONTWAIT); return how much that was."""
        assert flags == _AT_ONCE
        self._tls.settimeout(0)
        try:
            return self._tls.send(data)
        finally:
            self._tls.settimeout(self._timeout_s)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return up to so many bytes, or with MSG_WAITALL so many as come before the end; none at the end."""
        try:
            if flags != _ALL:
                return self._tls.recv(size)
            return self._whole(size)
        except TimeoutError as exc:
            raise BlockingIOError(*exc.args) from exc

    def _whole(self, size: int) -> bytes:
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            try:
                count = self._tls.recv_into(view[got:])
            except TimeoutError:
                if not got:
                    raise
                count = 0  # the caller asks again for the rest, and is late then
            if not count:
                break
            got += count
        view.release()
        return bytes(data[:got]) if got < size else bytes(data)

    def is_open(self) -> bool:
        """Whether the other side has it open and sent nothing, as far as this side was told."""
        self._tls.settimeout(0)
        try:
            self._tls.recv(1)
        except ssl.SSLWantReadError:
            return True
        except OSError:
            pass
        finally:
            self._tls.settimeout(self._timeout_s)
        return False

    def setsockopt(self, level: int, name: int, value: int) -> None:
        """Set an option of the socket."""
        self._tls.setsockopt(level, name, value)

    def close(self) -> None:
        """Close it. The other side is not told that this is the end: every frame says where it ends."""
        self._tls.close()
