"""Who may try a password now: the lock-out of those who guess. In memory only, and bounded, however many try."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from typing import NamedTuple

from halfmoon.logs import CountedLog

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
ENTRIES_MAX = 30_000
"""Addresses, names, and pairs of both that are remembered."""


class _Rule(NamedTuple):
    """So many failures within a time lock what failed, each lock in a row for twice as long."""

    failures: int
    within_ms: int
    lock_ms: int
    lock_max_ms: int


_PAIR = _Rule(5, 24 * HOUR_MS, MINUTE_MS, HOUR_MS)
_NETWORK = _Rule(50, 10 * MINUTE_MS, 10 * MINUTE_MS, 10 * MINUTE_MS)
_NAME = _Rule(100, HOUR_MS, 10 * MINUTE_MS, 10 * MINUTE_MS)

_Key = tuple[_Rule, str, str]


class Attempts:
    """Failed logins: 5 of a name from one address lock the pair for a minute, each further one for twice as long, up to an hour;
    50 from an address in 10 minutes lock the address for 10, 100 of a name in an hour lock it for 10 minutes, but for names at
    addresses where they succeeded. An IPv6 address counts as its /64. ``now_ms``: milliseconds since the epoch. For one thread.

    Ask `refused_ms` right before each check of a password, and tell what became of it. Times are compared either way: where the
    clock is set back a lock lasts at most twice its time.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._failures: dict[_Key, tuple[list[int], int, int]] = {}  # when, since when it is locked, and for how long
        self._succeeded: dict[_Key, None] = {}
        self._log = CountedLog(logging.getLogger("halfmoon.console"), "failed logins", now_ms())

    def refused_ms(self, name: str, address: str) -> int:
        """Return how long this name may not be tried from this address; 0: it may now. Costs microseconds."""
        keys, now = _keys(name, address), self._now_ms()
        locks = [self._failures.get(key, ([], 0, 0))[1:] for key in (keys[:1] if keys[0] in self._succeeded else keys)]
        return max(0, *(lock_ms - abs(now - since_ms) for since_ms, lock_ms in locks))

    def failed(self, name: str, address: str) -> int:
        """Count a wrong password, or a name that is not known, and return what `refused_ms` says from now on."""
        now = self._now_ms()
        self._log.tick(now)
        for key in _keys(name, address):
            rule = key[0]
            times, since_ms, lock_ms = self._failures.pop(key, ([], 0, 0))
            times = [*[time for time in times if abs(now - time) < rule.within_ms][1 - rule.failures :], now]
            if len(times) == rule.failures:
                lock_ms, since_ms = min(lock_ms * 2 or rule.lock_ms, rule.lock_max_ms), now
            self._failures[key] = times, since_ms, lock_ms if len(times) > 1 else 0
            if len(self._failures) > ENTRIES_MAX:
                del self._failures[next(iter(self._failures))]
                self._log.count(f"more than {ENTRIES_MAX:,} names or addresses, so the oldest are forgotten")
        return self.refused_ms(name, address)

    def succeeded(self, name: str, address: str) -> None:
        """Forget what failed before of a name from an address; strangers cannot lock this name out there any more."""
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
    """Return what counts as one place: an IPv4 address, also where it is mapped into IPv6, or an IPv6 address's /64."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ipaddress.IPv6Network((int(found), 64), strict=False))
