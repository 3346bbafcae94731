"""Addresses of host names, within a deadline: the system's resolver has none, and may hang while the network is broken."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from halfmoon.errors import LeaseUnavailable
from halfmoon.runtime.leases.deadline import Deadline
from halfmoon.settings.forms import is_ip

ADDRESSES_MAX = 8
"""Addresses of one name that are tried."""


def _ask(host: str) -> list[str]:
    return list(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))


class Resolver:
    """Resolver of the hosts of one store: a bounded set, so at most one thread for each waits for the system's resolver.

    A name whose addresses were found once is known for good: where the resolver fails or hangs later, they are used.
    """

    def __init__(self, ask: Callable[[str], list[str]] = _ask) -> None:
        self._ask = ask
        self._known: dict[str, list[str]] = {}
        self._failed: dict[str, str] = {}
        self._asking: dict[str, threading.Thread] = {}

    def addresses(self, host: str, deadline: Deadline) -> list[str]:
        """Return the IP addresses of a host, itself where it is one. Takes at most half of what is left until the deadline.

        Raises LeaseUnavailable: they are not found, or not in time.
        """
        if is_ip(host):
            return [host]
        thread = self._asking.get(host)
        if thread is None or not thread.is_alive():
            self._failed.pop(host, None)
            thread = self._asking[host] = threading.Thread(target=self._look_up, args=(host,), daemon=True, name="lease-resolver")
            thread.start()
        thread.join(deadline.left_s() / 2)
        if known := self._known.get(host):
            return known
        reason = self._failed.get(host, "the resolver does not answer")
        raise LeaseUnavailable(f"{deadline.address}: the name {host} is not found: {reason}", deadline.address)

    def _look_up(self, host: str) -> None:
        try:
            self._known[host] = self._ask(host)[:ADDRESSES_MAX]
        except (OSError, UnicodeError) as exc:
            self._failed[host] = getattr(exc, "strerror", None) or str(exc)
