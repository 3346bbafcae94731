"""Lock-out after failed logins. In memory only, and bounded."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable

from halfmoon.instant import Steady
from halfmoon.logs import CountedLog

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
ENTRIES_MAX = 30_000
"""Addresses, names, and pairs of both that are remembered."""


# Failures within a time that lock, the first lock and the longest: each lock in a row takes twice as long.
_PAIR = 5, 24 * HOUR_MS, MINUTE_MS, HOUR_MS
_NETWORK = 50, 10 * MINUTE_MS, 10 * MINUTE_MS, 10 * MINUTE_MS
_NAME = 100, HOUR_MS, 10 * MINUTE_MS, 10 * MINUTE_MS

_Key = tuple[tuple[int, int, int, int], str, str]


class Attempts:
    """Failed logins, which lock names and addresses.

    5 of a name from one address lock the pair for a minute, each further one for twice as long, up to an hour;
    50 from an address in 10 minutes lock the address for 10, 100 of a name in an hour lock it for 10 minutes, but for names at
    addresses where they succeeded. An IPv6 address counts as its /64. ``now_ms``: milliseconds since the epoch. For one thread.

    Ask `refused_ms` right before each check of a password, and report the result. Times are compared either way: where the
    clock is set back a lock lasts at most twice its time.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._failures: dict[_Key, tuple[list[int], int, int]] = {}  # when, since when it is locked, and for how long
        self._succeeded: dict[_Key, None] = {}
        self._log = CountedLog(logging.getLogger("halfmoon.console"), "failed logins", Steady(now_ms()))

    def refused_ms(self, name: str, address: str) -> int:
        """Return how long this name is locked for this address; 0: not at all. Costs microseconds."""
        keys, now = _keys(name, address), self._now_ms()
        locks = [self._failures.get(key, ([], 0, 0))[1:] for key in (keys[:1] if keys[0] in self._succeeded else keys)]
        return max(0, *(lock_ms - abs(now - since_ms) for since_ms, lock_ms in locks))

    def failed(self, name: str, address: str) -> int:
        """Count a wrong password, or an unknown name; return the new value of `refused_ms`."""
        now = self._now_ms()
        self._log.tick(Steady(now))
        for key in _keys(name, address):
            count, within_ms, first_ms, longest_ms = key[0]
            times, since_ms, lock_ms = self._failures.pop(key, ([], 0, 0))
            times = [*[time for time in times if abs(now - time) < within_ms][1 - count :], now]
            if len(times) == count:
                lock_ms, since_ms = min(lock_ms * 2 or first_ms, longest_ms), now
            self._failures[key] = times, since_ms, lock_ms if len(times) > 1 else 0
            if len(self._failures) > ENTRIES_MAX:
                del self._failures[next(iter(self._failures))]
                self._log.count(f"more than {ENTRIES_MAX:,} names or addresses, so the oldest are forgotten")
        return self.refused_ms(name, address)

    def succeeded(self, name: str, address: str) -> None:
        """Forget the failures of a name from an address; others cannot lock this name out there any more."""
        pair = _keys(name, address)[0]
        self._failures.pop(pair, None)
        self._succeeded.pop(pair, None)
        self._succeeded[pair] = None
        if len(self._succeeded) > ENTRIES_MAX:
            del self._succeeded[next(iter(self._succeeded))]


def _keys(name: str, address: str) -> tuple[_Key, _Key, _Key]:
    name, network = name[:64], network_of(address)
    return (_PAIR, name, network), (_NETWORK, "", network), (_NAME, name, "")


def network_of(address: str) -> str:
    """Return the network that counts as one address: an IPv4 address, also one mapped into IPv6, or the /64 of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ipaddress.IPv6Network((int(found), 64), strict=False))
