"""Metrics: declarations, samples and histograms. Plain values; knows neither format nor server."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple


class Metric(NamedTuple):
    """Declaration of a metric. ``kind`` is ``gauge``, ``counter`` (its name ends with ``_total``) or ``histogram``."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


class TurnTimes:
    """Histogram of the turns of an event loop, in buckets of powers of two: one addition to a list and one to a sum a turn.

    ``counts[n]`` holds turns of less than ``2 ** (16 + n)`` ns that are in no bucket before it, and ``total`` is their sum.
    """

    __slots__ = ("counts", "total")
    SHIFT, BUCKETS, PER_SECOND = 16, 16, 1e9

    def __init__(self) -> None:
        self.counts = [0] * 64  # more than are shown, so that no length of a turn needs a comparison
        self.total = 0

    def took(self, time: int) -> None:
        """Count a time, in the unit of the histogram."""
        self.counts[(time >> self.SHIFT).bit_length()] += 1
        self.total += time

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Yield the upper bound of each bucket in seconds, 66 us to 2.1 s, and how many took no longer."""
        for place, count in enumerate(accumulate(self.counts[: self.BUCKETS])):
            yield (1 << (self.SHIFT + place)) / self.PER_SECOND, count


class DecisionTimes(TurnTimes):
    """Histogram of the times until decisions of transactions, in seconds: the bounds are 2 s to 73 h."""

    __slots__ = ()
    SHIFT, BUCKETS, PER_SECOND = 1, 18, 1

    def spans(self) -> list[int]:
        """Return the counts of each span: under 2 s, then spans each twice as long, and last all from 73 h on."""
        return [*self.counts[: self.BUCKETS], sum(self.counts[self.BUCKETS :])]


Sample = tuple[Metric, tuple[str, ...], "int | float | TurnTimes"]
"""A metric, the values of its labels, and its value: `TurnTimes` for a histogram. Samples of one row share the tuple of values."""

Samples = Iterator["Sample | None"]
"""Samples in any order; None where the collector may yield to others: at least every 0.2 ms."""

TRANSACTIONS = {
    "halves": "Half messages stored.",
    "commits": "Transactions committed.",
    "rollbacks": "Transactions rolled back, expired ones included.",
    "unknown": "Second phases that decided nothing.",
    "repeats": "Decisions that repeated an earlier one.",
    "contradictions": "Decisions refused because they contradicted an earlier one.",
    "refused": "Decisions refused for another reason.",
    "checks_sent": "Checks sent to producers.",
    "checks_answered": "Checks that were answered.",
    "checks_still_open": "Checks answered with *still open*.",
    "checks_not_mine": "Checks answered with *not mine*: another member of the group was asked.",
    "checks_unanswered": "Checks still without an answer when the next was sent.",
    "rounds": "Rounds of checks begun.",
    "expired": "Half messages that expired.",
    "late_commits": "Half messages committed after they expired.",
    "late_rollbacks": "Half messages rolled back after they expired.",
    "resumed": "Expired half messages resumed.",
    "by_hand": "Decisions by an operator.",
}
"""Counters of a broker's transactions since its start."""

BATCHES = {
    "pieces": "Pieces of batches that were stored.",
    "prepared": "Messages in these pieces, undecided at first.",
    "votes_yes": "Promises to keep attempts until they are decided.",
    "votes_no": "Promises that were refused.",
    "decided": "Batches decided here.",
    "already": "Decisions that were already recorded.",
    "refused": "Decisions refused because an attempt had been aborted.",
    "applied": "Batches whose publishing began here.",
    "resolved": "Requests of brokers for the outcome of an attempt.",
    "aborted": "Attempts that nobody decided in time.",
    "dropped": "Undecided attempts that were dropped.",
    "published": "Messages of batches that became visible.",
    "skipped": "Messages of batches that a restart found already published.",
}
"""Counters of a broker's batch transactions since its start."""
