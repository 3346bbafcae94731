"""How many connections each address has, and whether it may have another. Reads no socket.

A server has room for so many connections; one address, by mistake or on purpose, shall not take all of it. Many clients may share
an address (processes of one host, hosts behind a NAT), so the share is large unless a setting says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from ipaddress import IPv6Network, ip_address

from halfmoon.instant import Steady
from halfmoon.logs import CountedLog

PER_ADDRESS_MAX = 8_000
"""Connections of one address, by default."""

LEFT_TO_OTHERS = 5
"""Of the room for connections, one part in so many is left to other addresses, whatever the setting says."""

IPV6_PREFIX = 64
"""Addresses of IPv6 count together when they begin with the same bits: one host may use all that follow."""

MINUTE_S = 60.0


class Places:
    """Counts the connections of one server, by address. Belongs to one event loop.

    ``room`` is how many connections there may be in all, ``per_address_max`` how many of one address; 0: as many as there is room.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, room: int, per_address_max: int = PER_ADDRESS_MAX) -> None:
        self.per_address_max = min(per_address_max, max(1, room - room // LEFT_TO_OTHERS)) if per_address_max else 0
        self._loop = loop
        self._counts: dict[str, int] = {}
        self._log = CountedLog(logging.getLogger("halfmoon.serve"), "connections are refused", self._now())
        self._timer: asyncio.TimerHandle | None = None

    def take(self, remote: str) -> bool:
        """Count a connection from an address (``ip:port``); return False, and log it, when that has too many."""
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
        """A connection from an address, which was counted, is gone."""
        if self.per_address_max:
            place = place_of(remote)
            if (count := self._counts.pop(place) - 1) > 0:
                self._counts[place] = count

    def close(self) -> None:
        """Log nothing more."""
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
    """Return what counts as one address of ``ip:port``: an address of IPv4, a network of IPv6."""
    host = remote.rpartition(":")[0].strip("[]").partition("%")[0]
    if ":" not in host:
        return host
    try:
        return str(IPv6Network((int(ip_address(host)), IPV6_PREFIX), strict=False))
    except ValueError:
        return host
