"""Each checker finds the fault it is for in a few facts, and finds nothing in good ones."""

from __future__ import annotations

import pytest

from simulation.checkers import (
    check,
    consumer_offsets,
    foreign,
    lost,
    offsets_unique_and_dense,
    order_kept,
    reads_stable,
    routes_agree,
)
from simulation.ledger import Acked, Commit, Contents, FoundFault, Ledger, Place, Queue, Seen

HERE = Place("broker-a", "orders", 0)
FLUSH_WINDOW_MS, SAVE_WINDOW_MS = 12_000, 9_000


def seen(offset: int, body: bytes, at_ms: int = 100) -> Seen:
    return Seen(at_ms, HERE, offset, offset * 100, body, b"record " + body)


def acked(offset: int, body: bytes, number: int = 0, at_ms: int = 100, sender: str = "s") -> Acked:
    return Acked(at_ms, HERE, offset, f"id{offset}", sender, number, body)


def contents(*bodies: bytes | None) -> Contents:
    messages = {i: seen(i, body, at_ms=10**9) for i, body in enumerate(bodies) if body is not None}
    return {HERE: Queue(0, len(bodies), messages)}


def good(flush: str = "sync") -> Ledger:
    ledger = Ledger(flush, FLUSH_WINDOW_MS, SAVE_WINDOW_MS)
    ledger.attempted = {b"a": {HERE}, b"b": {HERE}}
    ledger.acked = [acked(0, b"a", 0), acked(1, b"b", 1)]
    ledger.seen = [seen(0, b"a"), seen(1, b"b")]
    ledger.commits = [Commit(100, "g", HERE, 2)]
    return ledger


def test_a_good_history_has_no_problem() -> None:
    assert not any(check(good(), contents(b"a", b"b"), {("g", HERE): 2}).values())


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_an_acknowledged_message_that_is_missing_is_lost(flush: str) -> None:
    assert "holds nothing" in lost(good(flush), contents(b"a"))[0]


def test_an_acknowledged_offset_with_another_body_is_lost() -> None:
    assert "holds b'x'" in lost(good(), contents(b"a", b"x"))[0]


def test_power_may_take_with_async_flush_what_was_acknowledged_shortly_before_and_nothing_else() -> None:
    ledger = good("async")
    ledger.faults = [FoundFault(100 + FLUSH_WINDOW_MS, "broker-a", "power")]
    assert lost(ledger, contents(b"a")) == []
    ledger.faults = [FoundFault(101 + FLUSH_WINDOW_MS, "broker-a", "power")]
    assert lost(ledger, contents(b"a"))
    ledger.faults = [FoundFault(100, "broker-b", "power"), FoundFault(100, "broker-a", "kill")]
    assert lost(ledger, contents(b"a"))


def test_power_may_take_what_the_broker_had_no_time_to_sync_because_it_did_not_run() -> None:
    ledger = good("async")
    down = [FoundFault(150, "broker-a", "kill"), FoundFault(90_000, "broker-a", "start")]
    ledger.faults = [*down, FoundFault(90_000 + FLUSH_WINDOW_MS, "broker-a", "power")]
    assert lost(ledger, contents(b"a")) == []
    ledger.faults = [*down, FoundFault(90_001 + FLUSH_WINDOW_MS, "broker-a", "power")]
    assert lost(ledger, contents(b"a"))


def test_power_may_take_nothing_with_sync_flush() -> None:
    ledger = good("sync")
    ledger.faults = [FoundFault(101, "broker-a", "power")]
    assert lost(ledger, contents(b"a"))


def test_power_never_excuses_another_message_at_an_acknowledged_offset() -> None:
    ledger = good("async")
    ledger.faults = [FoundFault(101, "broker-a", "power")]
    assert lost(ledger, contents(b"a", b"x"))


def test_a_message_that_nobody_sent_is_foreign() -> None:
    assert "nobody sent" in foreign(good(), contents(b"a", b"b", b"c"))[0]


def test_an_offset_given_twice_is_found() -> None:
    ledger = good()
    ledger.acked.append(acked(1, b"c", 2))
    assert "was given to b'b' and to b'c'" in offsets_unique_and_dense(ledger, contents(b"a", b"b"))[0]


def test_a_hole_in_a_queue_is_found_unless_async_flush_lost_it_with_the_power() -> None:
    ledger = good("async")
    assert "1 holes, the first at 1" in offsets_unique_and_dense(ledger, contents(b"a", None, b"b"))[0]
    ledger.faults = [FoundFault(101, "broker-a", "power")]
    assert offsets_unique_and_dense(ledger, contents(b"a", None, b"b")) == []


def test_a_message_outside_the_ends_of_its_queue_is_found() -> None:
    found = {HERE: Queue(1, 2, {0: seen(0, b"a"), 1: seen(1, b"b")})}
    assert "outside [1, 2)" in offsets_unique_and_dense(good(), found)[0]


def test_a_message_that_changed_between_two_reads_is_found() -> None:
    ledger = good()
    ledger.seen.append(seen(1, b"c", at_ms=200))
    assert "was read as b'b' at 100 and as b'c' at 200" in reads_stable(ledger, contents(b"a", b"b"))[0]


def test_a_message_that_was_read_and_is_gone_is_found() -> None:
    ledger = good()
    ledger.faults = [FoundFault(150, "broker-a", "power")]
    assert "is gone" in reads_stable(ledger, contents(b"a"))[0]
    ledger.flush = "async"
    assert reads_stable(ledger, contents(b"a")) == []


def test_a_sender_whose_messages_changed_places_is_found() -> None:
    ledger = Ledger("sync")
    ledger.acked = [acked(5, b"a", 0), acked(4, b"b", 1), acked(9, b"c", 0, sender="other")]
    assert "message 0 lies at 5, its later message 1 at 4" in order_kept(ledger)[0]


def test_a_group_beyond_the_end_of_its_queue_is_found() -> None:
    assert "beyond its end 2" in consumer_offsets(good(), contents(b"a", b"b"), {("g", HERE): 3})[0]


def test_a_confirmed_offset_that_went_back_is_found_unless_a_crash_came_soon_after() -> None:
    ledger = good()
    assert "committed 2" in consumer_offsets(ledger, contents(b"a", b"b"), {("g", HERE): 1})[0]
    ledger.faults = [FoundFault(100 + SAVE_WINDOW_MS, "broker-a", "kill")]
    assert consumer_offsets(ledger, contents(b"a", b"b"), {("g", HERE): 1}) == []
    ledger.faults = [FoundFault(100 + SAVE_WINDOW_MS, "broker-a", "stop")]
    assert consumer_offsets(ledger, contents(b"a", b"b"), {("g", HERE): 1})


def test_a_confirmed_offset_that_was_forgotten_for_a_while_is_found() -> None:
    ledger = good()
    ledger.positions = [Commit(50, "g", HERE, 0), Commit(200, "g", HERE, 1)]
    assert "later it stood at 1" in consumer_offsets(ledger, contents(b"a", b"b"), {("g", HERE): 2})[0]
    ledger.faults = [FoundFault(150, "broker-a", "power")]
    assert consumer_offsets(ledger, contents(b"a", b"b"), {("g", HERE): 2}) == []


def test_a_name_server_that_knows_other_brokers_than_live_is_found() -> None:
    assert routes_agree([{"a": "1"}], {"a": "1"}) == []
    assert routes_agree([{"a": "1"}, {}], {"a": "1"})
