"""What all histories share: topics, the end of users, what queues hold, and comparisons with disks."""

from __future__ import annotations

import pytest

from halfmoon.effects import Op, sleep
from simulation.history import History, Workload, changed, durable, windows
from simulation.ledger import Ledger, Place, Queue


def history(flush: str = "sync") -> History:
    made = History(Workload, 1, flush=flush)
    made.make_world()
    return made


def failing() -> Op[None]:
    yield from sleep(1)
    raise ValueError("no reason")


def test_contents_are_what_was_sent_to_the_topics_that_were_created() -> None:
    past = history()
    past.create_topics("orders", queues=2)
    past.cluster.send("orders", b"paid", queue_id=1)
    past.cluster.run(ms=100)
    contents = past.contents(past.places(["orders"], 2))
    assert list(contents) == [Place("broker-a", "orders", 1)]
    assert [seen.body for seen in contents[Place("broker-a", "orders", 1)].messages.values()] == [b"paid"]


def test_users_that_hang_or_raise_are_problems() -> None:
    past = history()
    users = [past.cluster.client.start(failing(), "a"), past.cluster.client.start(sleep(10_000), "b")]
    past.until_done(users, 1_000, "users")
    assert past.messages.unexpected == ["users hang: ['b']", "a raised ValueError('no reason')"]


def test_what_is_read_with_sync_flush_lies_on_the_device() -> None:
    past = history("async")
    past.create_topics("orders", queues=1)
    past.cluster.send("orders", b"paid")
    past.cluster.run(ms=5)
    place = Place("broker-a", "orders", 0)
    seen = past.contents([place])[place].messages[0]
    broker = past.broker("broker-a")
    past.cluster.run(ms=2_000)
    assert durable(broker, seen)
    broker.disk.open("commitlog/" + "0" * 20).durable[seen.physical_offset] ^= 1
    assert not durable(broker, seen)
    past.messages.flush = "sync"
    past.must_be_durable(seen)
    assert "was read before it was durable" in past.messages.unexpected[0]


def test_a_queue_that_changed_over_a_clean_restart_is_named() -> None:
    place = Place("broker-a", "orders", 0)
    full, empty = {place: Queue(0, 1, {})}, {place: Queue(1, 1, {})}
    assert changed(full, full) == []
    assert changed(full, empty) == [f"{place} was [0, 1) with 0 messages and is [1, 1) with 0 messages after a clean restart"]
    assert changed(full, empty, ends=False) == []
    assert "is missing" in changed(full, {}, ends=False)[0]


@pytest.mark.parametrize(("kinds", "flush_ms"), [((), 1504), (("slow_disk",), 5500), (("stuck_disk",), 17_500)])
def test_a_crash_may_take_more_where_the_disk_is_slower(kinds: tuple[str, ...], flush_ms: int) -> None:
    ledger = Ledger("async")
    windows(ledger, kinds)
    assert ledger.flush_window_ms == flush_ms
    assert ledger.save_window_ms == flush_ms + 1000
