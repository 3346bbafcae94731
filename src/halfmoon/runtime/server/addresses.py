"""Addresses of sockets as text, and listening sockets bound to them. Knows nothing of connections."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any


def address_text(name: Any) -> str:
    """Return ``host:port`` of a socket's name; IPv6 stands in brackets, an IPv4 address inside IPv6 stands bare."""
    if not isinstance(name, tuple):
        return "unknown:0"
    host, port = name[0], name[1]
    if host.startswith("::ffff:") and "." in host:
        host = host[7:]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bound_socket(addresses: Sequence[Any]) -> socket.socket:
    """Return a socket bound to the first of the resolved addresses that can be bound, IPv4 before IPv6."""
    error: OSError | None = None
    for family, kind, protocol, _, address in sorted(addresses, key=lambda info: info[0] != socket.AF_INET):
        sock = socket.socket(family, kind, protocol)
        try:
            # no reuse of a port chosen by the system: another process could listen there before we do
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(address[1] != 0))
            sock.bind(address)
            sock.setblocking(False)
            return sock
        except OSError as exc:
            sock.close()
            error = exc
    raise error or OSError("no address to bind")
