"""Readings of brokers' clocks by the world's time, and of when their logs grew: for histories in which clocks are set.

A clock that is set back passes at half speed until it has caught up, and a process that starts takes it as it is: one time may be
shown more than once. So a record's time is known by its place in the log, and a shown second may be several of the world's.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from halfmoon.testing.cluster import BrokerNode, Cluster

READ_MS = 40
"""How often a clock is read where the log does not grow."""


class Reading(NamedTuple):
    """Reading of a running broker's clock, and the end of its log. Times are milliseconds."""

    at_ms: int
    shown_ms: int
    log_end: int
    life: int


class BrokerClock:
    """The readings of one broker, in order."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []

    def stored_between(self, place: int) -> tuple[int, int]:
        """Return the world's times between which the record at a place of the log was stored: one time, unless a process ended."""
        readings = self.readings
        for number in range(len(readings) - 1, 0, -1):
            before, after = readings[number - 1], readings[number]
            if before.log_end <= place < after.log_end:
                return before.at_ms if before.life != after.life else after.at_ms, after.at_ms
        return readings[0].at_ms, readings[0].at_ms

    def spans(self, begin_ms: int, end_ms: int) -> list[tuple[int, int]]:
        """Return the world's times in which the clock may have shown a time from ``begin_ms`` to ``end_ms``."""
        found: list[tuple[int, int]] = []
        for before, after in zip(self.readings, self.readings[1:]):
            low, high = sorted((before.shown_ms, after.shown_ms))
            if before.life != after.life:
                low, high = low - (after.at_ms - before.at_ms), high + after.at_ms - before.at_ms
            if low <= end_ms and begin_ms <= high:
                if found and found[-1][1] == before.at_ms:
                    found[-1] = (found[-1][0], after.at_ms)
                else:
                    found.append((before.at_ms, after.at_ms))
        return found

    def shown_at(self, at_ms: int) -> int:
        """Return what the clock showed at one of the world's times."""
        number = bisect_right(self.readings, at_ms, key=lambda reading: reading.at_ms)
        return self.readings[max(0, number - 1)].shown_ms

    def gained_ms(self, begin_ms: int, end_ms: int) -> int:
        """Return by how much more the clock went on than the world did, at most, from any reading to a later one in a time."""
        ahead = [one.shown_ms - one.at_ms for one in self.readings if begin_ms - READ_MS <= one.at_ms <= end_ms + READ_MS]
        least, most = (ahead or [0])[0], 0
        for each in ahead:
            least = min(least, each)
            most = max(most, each - least)
        return most


def read_clocks(cluster: Cluster) -> dict[str, BrokerClock]:
    """Have the clocks of all brokers read from now on."""
    clocks = {broker.name: BrokerClock() for broker in cluster.brokers}

    def look() -> None:
        for broker in cluster.brokers:
            if broker.running:
                _read(broker, clocks[broker.name].readings, cluster.timeline.now)

    cluster.timeline.watch(look)
    return clocks


def _read(broker: BrokerNode, readings: list[Reading], now: int) -> None:
    end, life = broker.core.store.end_offset, broker.host.lives
    last = readings[-1] if readings else None
    if last is None or last.log_end != end or last.life != life or now - last.at_ms >= READ_MS:
        readings.append(Reading(now, broker.host.now(), end, life))
