"""How fast a consumer pulls and consumes a topic, for operators (request 307): sums that grow, and samples of them.

Follows ConsumerStatsManager and StatsItem (RocketMQ 4.9.8): a sample every ten seconds, seven of which make a minute; every
sixtieth is kept for the hour. Times come in; nothing here looks at a clock.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from halfmoon.wire.bodies import ConsumeFigures

SAMPLE_MS = 10_000
KEPT = 7
"""Samples of the last minute, and of the last hour."""

EACH_HOURLY = 60
"""Samples between two of the hour."""


class ConsumeCounters(NamedTuple):
    """Sums at a time: pulls that found something, their ms and messages; calls, their ms and results."""

    at_ms: int = 0
    pulls: int = 0
    pull_ms: int = 0
    pulled: int = 0
    calls: int = 0
    call_ms: int = 0
    good: int = 0
    failed: int = 0


class ConsumeRates:
    """The rates of one topic."""

    def __init__(self, now: int) -> None:
        first = ConsumeCounters(now)
        self._sums = first
        self._minute: deque[ConsumeCounters] = deque([first], maxlen=KEPT)
        self._hour: deque[ConsumeCounters] = deque([first], maxlen=KEPT)
        self._count = 0

    def pulled(self, count: int, took_ms: int) -> None:
        """Count a pull that brought messages."""
        sums = self._sums
        self._sums = sums._replace(pulls=sums.pulls + 1, pull_ms=sums.pull_ms + took_ms, pulled=sums.pulled + count)

    def called(self, took_ms: int, good: int, failed: int, *, calls: int = 1) -> None:
        """Count calls of the listener: ``good`` messages are consumed, ``failed`` are not."""
        sums = self._sums
        self._sums = sums._replace(
            calls=sums.calls + calls, call_ms=sums.call_ms + took_ms, good=sums.good + good, failed=sums.failed + failed
        )

    def sample(self, now: int) -> None:
        """Ten seconds are over."""
        self._count += 1
        self._minute.append(self._sums._replace(at_ms=now))
        if self._count % EACH_HOURLY == 0:
            self._hour.append(self._minute[-1])

    def snapshot(self) -> ConsumeFigures:
        """Return the rates of the last minute; the time of a call is that of the last hour when the minute had none.

        Differs: failures are counted until now, those of the original until its last sample, which is up to ten minutes old.
        """
        first, last = self._minute[0], self._minute[-1]
        seconds = (last.at_ms - first.at_ms) / 1000
        pulls, calls, call_ms = last.pulls - first.pulls, last.calls - first.calls, last.call_ms - first.call_ms
        if not calls:
            calls, call_ms = self._sums.calls - self._hour[0].calls, self._sums.call_ms - self._hour[0].call_ms
        return ConsumeFigures(
            pull_rt=(last.pull_ms - first.pull_ms) / pulls if pulls else 0.0,
            pull_tps=(last.pulled - first.pulled) / seconds if seconds else 0.0,
            consume_rt=call_ms / calls if calls else 0.0,
            consume_ok_tps=(last.good - first.good) / seconds if seconds else 0.0,
            consume_failed_tps=(last.failed - first.failed) / seconds if seconds else 0.0,
            consume_failed_msgs=self._sums.failed - self._hour[0].failed,
        )
