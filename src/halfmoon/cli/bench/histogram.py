"""Histogram of latencies, whose buckets grow with the value: memory is bounded, and percentiles are near."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count

_BITS = 7
"""Each power of two has as many buckets as 2 to this power: a percentile is at most 0.8 % too high."""
BAR = 40
"""Longest bar, in columns."""


class Histogram:
    """Histogram of times in nanoseconds. Takes at most some 7,000 counters, for times up to hours."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = self.max_ns = 0

    def add(self, ns: int) -> None:
        """Count one time."""
        shift = max(0, ns.bit_length() - _BITS - 1)
        self._counts[(ns >> shift) + (shift << _BITS)] += 1
        self.count += 1
        self.max_ns = max(self.max_ns, ns)

    def percentile(self, percent: float) -> int:
        """Return the time that this share of the times did not exceed, in ns; 0 where there are none."""
        wanted, seen = self.count * percent / 100, 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(_highest(bucket), self.max_ns)
        return 0

    def rows(self) -> list[tuple[int, int]]:
        """Return how many times were longer than the row before says and at most so many µs, in steps of 1, 2, 5, 10."""
        rows: list[tuple[int, int]] = []
        buckets = sorted(self._counts)
        for bound in (digit * 10**power for power in count() for digit in (1, 2, 5)):
            if not buckets:
                return rows
            within = [bucket for bucket in buckets if _highest(bucket) <= bound * 1000]
            buckets = buckets[len(within) :]
            if within or rows:
                rows.append((bound, sum(self._counts[bucket] for bucket in within)))
        return rows


def lines_of(rows: Sequence[tuple[int, int]]) -> list[str]:
    """Return the rows of a histogram for people, with bars."""
    most = max((number for _, number in rows), default=0)
    return [f"{f'≤ {bound:,} µs':>16} {number:>12,} {'█' * -(-BAR * number // most)}".rstrip() for bound, number in rows]


def _highest(bucket: int) -> int:
    """Return the highest time of a bucket, in ns."""
    shift = max(0, (bucket >> _BITS) - 1)
    return ((bucket - (shift << _BITS) + 1) << shift) - 1
