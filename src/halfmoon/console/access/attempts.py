"""Who may try a password now: the lock-out of those who guess. In memory only, and bounded, however many try."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from typing import Any

from halfmoon.logs import CountedLog

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
ENTRIES_MAX = 10_000
"""Addresses, names, and pairs of both that are remembered, of each."""


class Attempts:
    """Failed logins: 5 of a name from one address lock the pair for a minute, each further one for twice as long, up to an hour;
    50 from an address in 10 minutes lock the address for 10, 100 of a name in an hour lock it for 10 minutes, but for names at
    addresses where they succeeded. An IPv6 address counts as its /64. ``now_ms``: milliseconds since the epoch. For one thread.

    Ask `refused_ms` right before each check of a password, and tell what became of it.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._pairs = _Tally(5, 24 * HOUR_MS, MINUTE_MS, HOUR_MS)
        self._addresses = _Tally(50, 10 * MINUTE_MS, 10 * MINUTE_MS, 10 * MINUTE_MS)
        self._names = _Tally(100, HOUR_MS, 10 * MINUTE_MS, 10 * MINUTE_MS)
        self._succeeded: dict[tuple[str, str], None] = {}
        self._log = CountedLog(logging.getLogger("halfmoon.console"), "failed logins", now_ms())

    def refused_ms(self, name: str, address: str) -> int:
        """Return how long this name may not be tried from this address; 0: it may now. Costs microseconds."""
        name, network = pair = name[:64], network_of(address)
        now = self._now_ms()
        of_all = 0 if pair in self._succeeded else max(self._names.left_ms(name, now), self._addresses.left_ms(network, now))
        return max(of_all, self._pairs.left_ms(pair, now))

    def failed(self, name: str, address: str) -> int:
        """Count a wrong password, or a name that is not known, and return what `refused_ms` says from now on."""
        name, network = pair = name[:64], network_of(address)
        now = self._now_ms()
        self._log.tick(now)
        if any([self._pairs.add(pair, now), self._addresses.add(network, now), self._names.add(name, now)]):
            self._log.count(f"more than {ENTRIES_MAX:,} names or addresses, so the oldest are forgotten")
        return self.refused_ms(name, address)

    def succeeded(self, name: str, address: str) -> None:
        """Forget what failed before of a name from an address; strangers cannot lock this name out there any more."""
        pair = name[:64], network_of(address)
        self._pairs.by_key.pop(pair, None)
        self._succeeded.pop(pair, None)
        self._succeeded[pair] = None
        _is_trimmed(self._succeeded)


class _Tally:
    """Failures by key: when, since when it is locked, and for how long. ``count`` of them within ``within_ms`` lock it, each lock
    in a row for twice as long. Times are compared either way: where the clock is set back a lock lasts at most twice its time."""

    def __init__(self, count: int, within_ms: int, lock_ms: int, lock_max_ms: int) -> None:
        self._count, self._within_ms, self._lock_ms, self._lock_max_ms = count, within_ms, lock_ms, lock_max_ms
        self.by_key: dict[object, tuple[tuple[int, ...], int, int]] = {}

    def left_ms(self, key: object, now: int) -> int:
        _, since_ms, lock_ms = self.by_key.get(key, ((), 0, 0))
        return max(0, lock_ms - abs(now - since_ms))

    def add(self, key: object, now: int) -> bool:
        """Count a failure, and return whether another key had to be forgotten for it."""
        times, since_ms, lock_ms = self.by_key.pop(key, ((), 0, 0))
        times = (*[time for time in times if abs(now - time) < self._within_ms][1 - self._count :], now)
        if len(times) == self._count:
            lock_ms, since_ms = min(lock_ms * 2 or self._lock_ms, self._lock_max_ms), now
        self.by_key[key] = times, since_ms, lock_ms if len(times) > 1 else 0
        return _is_trimmed(self.by_key)


def network_of(address: str) -> str:
    """Return what counts as one place: an IPv4 address, also where it is mapped into IPv6, or an IPv6 address's /64."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ipaddress.IPv6Network((int(found), 64), strict=False))


def _is_trimmed(by_key: dict[Any, Any]) -> bool:
    if len(by_key) <= ENTRIES_MAX:
        return False
    del by_key[next(iter(by_key))]
    return True
