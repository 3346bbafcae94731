"""The checkers of ordered consumption find in a few calls what each is for."""

from __future__ import annotations

from dataclasses import replace

from halfmoon.model import MessageQueue
from simulation.order.checkers import Call, OrderLedger, check_order

QUEUE = MessageQueue("orders", "broker-a", 0)


def call(number: int, consumer: str = "c1") -> Call:
    begin_ms = 100_000 + 100 * number
    return Call(begin_ms, consumer, QUEUE, number, b"key/%d" % number, consumer, number, begin_ms + 50, good=True)


def ledger(*calls: Call) -> OrderLedger:
    return OrderLedger(list(calls), {call.body: f"broker-a/0@{call.offset}" for call in calls})


def checkers(facts: OrderLedger) -> list[str]:
    return [problem.partition(":")[0] for problem in check_order(facts)]


def test_one_call_after_the_other_by_the_owner_is_well() -> None:
    assert checkers(ledger(call(0), call(1), call(2, "c2"))) == []


def test_a_call_without_the_lock_is_found_unless_a_fault_took_it() -> None:
    facts = ledger(call(0), replace(call(1), owner="c2"))
    assert checkers(facts) == ["owner"]
    facts.upset["broker-a"].append(facts.calls[1].begin_ms)
    assert checkers(facts) == []


def test_calls_side_by_side_are_found() -> None:
    assert checkers(ledger(replace(call(0), end_ms=call(1).begin_ms + 1), call(1))) == ["side by side"]


def test_a_message_that_is_left_out_or_never_consumed_is_found() -> None:
    facts = ledger(call(0), call(2))
    facts.acked[b"key/1"] = "broker-a/0@1"
    assert set(checkers(facts)) == {"order", "never consumed"}


def test_a_key_that_changes_its_queue_is_found_unless_a_broker_was_killed() -> None:
    facts = ledger(call(0), call(1))
    facts.acked[facts.calls[1].body] = "broker-b/0@7"
    assert checkers(facts) == ["key"]
    facts.upset["broker-b"].append(facts.calls[0].begin_ms)
    assert checkers(facts) == []
