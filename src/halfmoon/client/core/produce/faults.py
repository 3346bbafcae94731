"""Which queue a message goes to: in turn, away from a broker that failed, and away from slow brokers for a while. No I/O."""

from __future__ import annotations

import msgspec

from halfmoon.client.core.route import PublishInfo
from halfmoon.model import MessageQueue

LATENCY_MS = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
AVOID_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
"""A send that took at least LATENCY_MS[i] has its broker avoided for AVOID_MS[i]. Follows MQFaultStrategy (RocketMQ 4.9.8)."""
FAILED_LATENCY_MS = 30_000
"""Latency that a failed send counts as: ten minutes of avoidance."""


def avoid_ms(latency_ms: int) -> int:
    """Return for how long a broker with this latency is avoided."""
    for bound, duration in zip(reversed(LATENCY_MS), reversed(AVOID_MS)):
        if latency_ms >= bound:
            return duration
    return 0


class Fault(msgspec.Struct):
    """Speed of one broker: the last latency, and until when it is avoided (ms, steady)."""

    latency_ms: int
    until_ms: int


class FaultTable:
    """Slow and failing brokers. Does nothing unless ``enabled``; bounded by the number of brokers of the routes."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.items: dict[str, Fault] = {}
        self._turn = 0

    def record(self, broker_name: str, latency_ms: int, now: int, *, failed: bool = False) -> None:
        """Note how long a send to a broker took, or that it failed.

        Differs: the original keeps a failure's own, often short, latency, so that `least_bad` would prefer it.
        """
        if self.enabled:
            counted = FAILED_LATENCY_MS if failed else latency_ms
            self.items[broker_name] = Fault(counted, now + avoid_ms(counted))

    def available(self, broker_name: str, now: int) -> bool:
        """Whether the broker is not avoided now."""
        item = self.items.get(broker_name)
        return item is None or now >= item.until_ms

    def forget(self, broker_name: str) -> None:
        """Forget a broker that has no queue of the topic any more."""
        self.items.pop(broker_name, None)

    def least_bad(self, now: int) -> str | None:
        """Return a broker of the better half: available first, then the faster, then the sooner free; in turn.

        Follows LatencyFaultToleranceImpl.pickOneAtLeast (RocketMQ 4.9.8).
        """
        order = sorted(
            self.items, key=lambda name: (not self.available(name, now), self.items[name].latency_ms, self.items[name].until_ms)
        )
        if not order:
            return None
        half = len(order) // 2
        self._turn += 1
        return order[self._turn % half] if half else order[0]


def choose_queue(info: PublishInfo, last_broker: str | None, faults: FaultTable, now: int) -> MessageQueue:
    """Return the queue for the next attempt; ``last_broker`` is the one that just failed, None at the first attempt.

    Off: the next queue in turn, when retrying the next one on another broker. On: the next one in turn whose broker is
    available and not the last, else available at all, else on the least bad broker, else as if off.

    Follows MQFaultStrategy.selectOneMessageQueue (RocketMQ 4.9.8).
    Differs: 4.7.1 insists on the broker that failed, and 4.9.8 does not look at it; here an available other one comes first.
    """
    queues, turn = info.queues, info.turn + 1
    info.turn, count = turn, len(queues)
    if faults.enabled:
        same_broker: MessageQueue | None = None
        for i in range(count):
            queue = queues[(turn + i) % count]
            if faults.available(queue.broker_name, now):
                if queue.broker_name != last_broker:
                    return queue
                same_broker = same_broker or queue
        if same_broker is not None:
            return same_broker
        if (name := faults.least_bad(now)) is not None:
            if writes := info.write_counts.get(name, 0):
                return MessageQueue(info.topic, name, turn % writes)
            faults.forget(name)
    if last_broker is not None:
        for i in range(count):
            queue = queues[(turn + i) % count]
            if queue.broker_name != last_broker:
                return queue
    return queues[turn % count]
