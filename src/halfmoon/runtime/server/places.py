"""Number of connections by address, and their bound. Reads no socket.

No single address may use up all connections of a server. Many clients may share an address (processes of one host, hosts behind a
NAT), so the share is large unless a setting says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from ipaddress import IPv6Network, ip_address

from halfmoon.instant import Steady
from halfmoon.logs import CountedLog

PER_ADDRESS_MAX = 8_000
"""Default bound of connections of one address."""

LEFT_TO_OTHERS = 5
"""Fraction (one in this number) of all connections that is always left to other addresses."""

IPV6_PREFIX = 64
"""Prefix length by which IPv6 addresses count together: one host may use all addresses of a prefix."""

MINUTE_S = 60.0


class Places:
    """Counter of a server's connections by address. Belongs to one event loop.

    ``room`` is the bound of all connections, ``per_address_max`` of one address; 0: no bound but ``room``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, room: int, per_address_max: int = PER_ADDRESS_MAX) -> None:
        self.per_address_max = min(per_address_max, max(1, room - room // LEFT_TO_OTHERS)) if per_address_max else 0
        self._loop = loop
        self._counts: dict[str, int] = {}
        self._log = CountedLog(logging.getLogger("halfmoon.serve"), "connections are refused", self._now())
        self._timer: asyncio.TimerHandle | None = None

    def take(self, remote: str) -> bool:
        """Count a connection from an address (``ip:port``); return False, and log it, if that has too many."""
        if not self.per_address_max:
            return True
        place = place_of(remote)
        count = self._counts.get(place, 0)
        if count >= self.per_address_max:
            self._refused(f"{place} has {count}, the bound of one address (connections_per_address_max)")
            return False
        self._counts[place] = count + 1
        return True

    def release(self, remote: str) -> None:
        """Count a connection from an address no longer."""
        if self.per_address_max:
            place = place_of(remote)
            if (count := self._counts.pop(place) - 1) > 0:
                self._counts[place] = count

    def close(self) -> None:
        """Stop logging."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refused(self, why: str) -> None:
        self._log.count(why)
        if self._timer is None:
            self._timer = self._loop.call_later(MINUTE_S, self._look)

    def _look(self) -> None:
        self._timer = None
        self._log.tick(self._now())
        if self._log.is_counting:
            self._timer = self._loop.call_later(MINUTE_S, self._look)

    def _now(self) -> Steady:
        return Steady(int(self._loop.time() * 1000))


def place_of(remote: str) -> str:
    """Return the unit in which ``ip:port`` counts: an IPv4 address, or an IPv6 network."""
    host = remote.rpartition(":")[0].strip("[]").partition("%")[0]
    if ":" not in host:
        return host
    try:
        return str(IPv6Network((int(ip_address(host)), IPV6_PREFIX), strict=False))
    except ValueError:
        return host
