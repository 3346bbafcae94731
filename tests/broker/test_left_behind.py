"""A request that was answered leaves nothing in memory, whatever it was, and whatever its answer waited for."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from halfmoon.broker.copies import feeding, states
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import LockBatchRequest, to_json
from halfmoon.wire.headers.client import LockBatchMq
from halfmoon.wire.headers.offset import GetMaxOffset, UpdateConsumerOffset
from halfmoon.wire.headers.pull import QueryMessage
from tests.broker.copies.slave import Port, master_lease
from tests.broker.half import COMMIT, GROUP, ROLLBACK, end, prepare, produce
from tests.broker.talk import pull_header, send_header

PROMISES = {
    "nothing": {},
    "the device": {"store": {"flush_disk_type": "SYNC_FLUSH"}},
    "slaves": {"role": "SYNC_MASTER"},
    "the device and slaves": {"role": "SYNC_MASTER", "store": {"flush_disk_type": "SYNC_FLUSH"}},
    "the other member": {"lease": master_lease},
    "the device and the other member": {"lease": master_lease, "store": {"flush_disk_type": "SYNC_FLUSH"}},
}
CALLS = 80
LEFT_MAX = CALLS // 2
"""Blocks that the log and its indexes may take beside: what holds one answer would leave several each time."""


@pytest.fixture(autouse=True)
def little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep little of the last requests, so that it fills up soon."""
    monkeypatch.setattr(states, "ROWS_MAX", 50)
    monkeypatch.setattr(feeding, "_MARKS_MAX", 20)


class Followed:
    """A broker and whoever copies its log, if its promise needs that."""

    def __init__(self, talk: Any) -> None:
        self.talk, self.port = talk, Port(talk)
        self.has_slave = talk.broker.copies.feeding.pair is not None or talk.settings.copies_wanted > 1
        if self.has_slave:
            self.port.connect(1)
            self.copy()

    def copy(self) -> None:
        if not self.has_slave:
            return
        if self.talk.broker.copies.feeding.pair is not None:
            self.port.follow(1)
        else:
            self.port.report(1, self.talk.broker.store.end_offset)
        self.port.take(1)

    def ask(self, header: Any, body: bytes = b"", late_ms: int = 0) -> Any:
        """Return the answer to a request, which may wait."""
        opaque = self.talk.post(header, body)
        self.talk.turn()
        self.talk.wait(late_ms)
        self.copy()
        self.talk.wait(50)
        self.copy()
        self.talk.turn()
        answer = self.talk.answer(opaque)
        assert answer is not None
        return answer


def smallest(call: Callable[[], object]) -> int:
    """Return what is left behind by many calls, at least; what is kept of the last ones fills up before."""
    left = []
    for _ in range(5):
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(CALLS):
            call()
        gc.collect()
        left.append(sys.getallocatedblocks() - before)
    return min(left[2:])


@pytest.mark.parametrize("late_ms", [0, 6_000], ids=["in time", "after its deadline"])
@pytest.mark.parametrize("promise", PROMISES)
def test_a_send_leaves_nothing_behind(make_talk: Callable[..., Any], promise: str, late_ms: int) -> None:
    followed = Followed(make_talk(**PROMISES[promise]))

    def send() -> None:
        assert followed.ask(send_header(), late_ms=late_ms).code in (0, 10, 11, 12)

    assert smallest(send) < LEFT_MAX


def decide(decision: int) -> Callable[[Followed], None]:
    def run(followed: Followed) -> None:
        sent = prepare(followed.talk)
        end(followed.talk, sent, decision, oneway=True)
        followed.talk.turn()

    return run


def late_pull(followed: Followed) -> None:
    talk = followed.talk
    offset = talk.broker.store.queue_max("T", 0)
    opaque = talk.post(pull_header(offset=offset, wait_ms=10_000))
    talk.turn()
    talk.send()
    talk.wait(20)
    assert talk.answer(opaque).code == 0


def lock(followed: Followed) -> None:
    body = to_json(LockBatchRequest("client-1", "G", [MessageQueue("T", "broker-a", 0)]))
    assert followed.ask(LockBatchMq(), body).code == 0


WAYS: dict[str, Callable[[Followed], Any]] = {
    "a transaction that is committed": decide(COMMIT),
    "a transaction that is rolled back": decide(ROLLBACK),
    "a heartbeat of a producer": lambda followed: produce(followed.talk, GROUP),
    "a heartbeat of a consumer": lambda followed: followed.talk.consume("T"),
    "a pull": lambda followed: followed.talk.pull(),
    "a pull that waits": late_pull,
    "a pull that waits in vain": lambda followed: followed.talk.pull(offset=1 << 40, wait_ms=1),
    "a delayed message": lambda followed: (followed.talk.send(properties="DELAY\x011\x02"), followed.talk.wait(1_100)),
    "progress": lambda followed: followed.ask(UpdateConsumerOffset(consumer_group="G", topic="T", queue_id=0, commit_offset=1)),
    "a lock": lock,
    "a look at an offset": lambda followed: followed.ask(GetMaxOffset(topic="T", queue_id=0)),
    "a request that nobody knows": lambda followed: followed.talk.ask(GetMaxOffset(topic="T", queue_id=0), code=9_999),
    "a message that is refused": lambda followed: followed.talk.send("no topic !"),
    "a query by key": lambda followed: followed.ask(
        QueryMessage(topic="T", key="none", max_num=10, begin_timestamp=0, end_timestamp=1 << 50)
    ),
}


@pytest.mark.parametrize("promise", ["nothing", "the device"])
@pytest.mark.parametrize("way", WAYS)
def test_what_else_is_asked_leaves_nothing_behind(make_talk: Callable[..., Any], promise: str, way: str) -> None:
    followed = Followed(make_talk(**PROMISES[promise]))
    followed.talk.send()

    def call() -> None:
        WAYS[way](followed)
        followed.talk.broker.stats.turned(0)  # as a program says after each turn

    assert smallest(call) < LEFT_MAX
