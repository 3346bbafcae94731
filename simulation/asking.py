"""Asks the brokers of a quiet simulated cluster what they hold, and runs the world until they have answered. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from halfmoon.effects import Call, Op
from halfmoon.errors import NetworkError
from halfmoon.wire.headers.offset import GetMaxOffset, GetMinOffset, OffsetReply
from simulation.cluster import Cluster
from simulation.ledger import Contents, Place, Queue
from simulation.workload import Plan, read_queue

T = TypeVar("T")


def ask(cluster: Cluster, operation: Op[T]) -> T:
    """Run an operation at the cluster's client and return its result. Raises what it raises, or StillRunning after 30 s."""
    task = cluster.client.start(operation, "asking")
    cluster.world.run_until(lambda: task.done, 30_000)
    return task.result()


def call(address: str, request: Any) -> Op[Any]:
    """Send a request, up to four times; return the reply's `Command`. Raises NetworkError."""
    for _ in range(3):
        try:
            return (yield Call(address, request, b"", 5000))
        except NetworkError:
            continue
    return (yield Call(address, request, b"", 5000))


def contents(cluster: Cluster, plan: Plan, places: Iterable[Place]) -> Contents:
    """Return what queues hold; those that never had a message are left out."""
    found: Contents = {}
    for place in places:
        address = plan.brokers[place.broker]
        ends = [_end_of(cluster, address, cls(topic=place.topic, queue_id=place.queue_id)) for cls in (GetMinOffset, GetMaxOffset)]
        messages = ask(cluster, read_queue(plan, place))
        if messages or ends[1]:
            found[place] = Queue(ends[0], ends[1], messages)
    return found


def _end_of(cluster: Cluster, address: str, request: GetMinOffset | GetMaxOffset) -> int:
    reply = ask(cluster, call(address, request))
    return int(reply.header(OffsetReply).offset) if reply.code == 0 else 0
