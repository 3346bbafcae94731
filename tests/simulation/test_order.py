"""Ordered consumption while consumers come, go and crash: strict order, one owner a queue; and the checkers bite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from halfmoon.broker.broker import Broker
from halfmoon.broker.consumers.locks import Locks
from halfmoon.client.core.consume.orderly import OrderlyConsumerCore
from halfmoon.client.core.consume.push_consumer import PushConsumerCore
from halfmoon.client.core.missing_brokers import MissingBrokers
from halfmoon.client.core.route import Route
from halfmoon.model import MessageQueue
from halfmoon.settings import overwrite
from halfmoon.wire.command import Command
from halfmoon.wire.headers.offset import OffsetReply
from simulation.history import simulate
from simulation.order import ListenerCall, Order, OrderLedger, check_order
from tests.simulation.faulty import finds, planted, verdict_on
from tests.simulation.planted import PULL, QUERY_OFFSET, forgetful, tampered

SEEDS = range(1, 11)
KEPT = (61130,)  # a consumer is cut off behind a pull that came some time after its last heartbeat
BITE = range(1, 7)


history = partial(verdict_on, Order)


@pytest.mark.mission("004-15")
@pytest.mark.parametrize("seed", [*SEEDS, *KEPT])
def test_order_is_kept_whatever_happens(seed: int) -> None:
    assert history(seed).problems == []


@pytest.mark.mission("004-15")
@pytest.mark.parametrize("seed", range(21, 25))
def test_order_is_kept_though_consumers_are_cut_off_and_come_back(seed: int) -> None:
    assert simulate(Order, seed, kinds=("join", "cut", "leave")).problems == []


@pytest.mark.mission("004-15")
@pytest.mark.parametrize("seed", range(11, 17))
def test_order_is_kept_and_calls_never_overlap_while_consumers_join_leave_and_crash(seed: int) -> None:
    assert simulate(Order, seed, kinds=("join", "leave", "crash")).problems == []


def test_clean_hand_overs_repeat_nothing() -> None:
    verdicts = [simulate(Order, seed, kinds=("join", "leave")) for seed in (1, 2)]
    assert [(verdict.problems, verdict["again"]) for verdict in verdicts] == [([], 0), ([], 0)]
    assert sum(verdict["changes of owners"] for verdict in verdicts) > 5


def test_histories_of_order_are_worth_judging() -> None:
    verdicts = [history(seed) for seed in SEEDS]
    assert sum(verdict["acknowledged"] for verdict in verdicts) > 2_000
    assert sum(verdict["failed"] for verdict in verdicts) > 200
    assert sum(verdict["changes of owners"] for verdict in verdicts) > 50


# ---------------------------------------------------------------- name servers that restart

RESTARTS = ("nameserver", "nameserver", "join")


class Unhurried(Broker):
    """Registers each 30 s, or each 12 s, only, as RocketMQ's brokers do, whatever becomes of its connections."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        period_ms = 30_000 if self.settings.name == "broker-a" else 12_000
        overwrite(self.settings, replace(self.settings, register_ms=period_ms))
        self.registration.disconnected = lambda address: None  # type: ignore[method-assign]


@pytest.mark.parametrize("seed", range(31, 34))
def test_a_restarted_name_server_knows_all_brokers_within_a_second_and_no_key_changes_its_queue(seed: int) -> None:
    assert simulate(Order, seed, kinds=RESTARTS, brokers=2).problems == []


@pytest.mark.parametrize("seed", range(31, 33))
def test_a_key_keeps_its_queue_though_a_name_server_knows_no_broker_for_half_a_minute(seed: int) -> None:
    verdict = simulate(Order, seed, kinds=RESTARTS, brokers=2, make_broker=Unhurried)
    assert {problem.partition(":")[0] for problem in verdict.problems} == {"late"}


# ---------------------------------------------------------------- planted faults


class Generous(Broker):
    """Locks every queue for everybody."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.locks._take = lambda *arguments, **values: True  # type: ignore[method-assign]


def ahead(chance: Random) -> Callable[[int, Command], None]:
    """Answer a group's offset with one more, now and then."""

    def tamper(code: int, reply: Command) -> None:
        header = reply.header(OffsetReply) if code == QUERY_OFFSET else None
        if header is not None and header.offset > 3 and chance.random() < 0.5:
            reply.fields = {**reply.fields, "offset": str(header.offset + 1)}

    return tamper


CRC, BODY_BYTES, BODY = slice(8, 12), slice(84, 88), 88
"""Where these stand in a record of IPv4 hosts."""


def keys_swapped(chance: Random) -> Callable[[int, Command], None]:
    """Let two messages of one key in a pull's answer change their bodies, so that the offsets say nothing of it."""

    def tamper(code: int, reply: Command) -> None:
        if code != PULL or not reply.body:
            return
        body, at = bytearray(reply.body), 0
        first: dict[tuple[bytes, int], int] = {}
        while at < len(body):
            size = int.from_bytes(body[at + BODY_BYTES.start : at + BODY_BYTES.stop], "big")
            key = bytes(body[at + BODY : at + BODY + size]).partition(b"/")[0], size
            if key in first:
                _swap(body, first[key], at, size)
                break
            first[key] = at
            at += int.from_bytes(body[at : at + 4], "big")
        reply.body = bytes(body)

    return tamper


def _swap(records: bytearray, one: int, other: int, size: int) -> None:
    for begin, end in ((CRC.start, CRC.stop), (BODY, BODY + size)):
        here, there = slice(one + begin, one + end), slice(other + begin, other + end)
        records[here], records[there] = records[there], records[here]


def believe(self: MissingBrokers, topic: str, known: Route, answer: Route) -> Any:
    """Believe a fresh name server."""
    yield from ()
    return answer


def remove(core: OrderlyConsumerCore, held: Any) -> Any:
    """Give a queue up while the listener has a message."""
    yield from PushConsumerCore._remove(core, held)
    yield from core._unlock([held.queue])


def finish(core: OrderlyConsumerCore, held: Any, messages: Any, said: Any) -> Any:
    """Go on behind a failed message."""
    core._advance(held, messages)
    yield from ()


def keep_connected(core: OrderlyConsumerCore, address: str) -> None:
    """Pass over a lost connection."""


LOST = Locks.lost


def give_away(locks: Locks, peer: int, by_us: bool) -> None:
    """Give away the locks of a client that is only not heard."""
    LOST(locks, peer, by_us=False)


CONSUMER, LOCKS = "halfmoon.client.core.consume.orderly.OrderlyConsumerCore", "halfmoon.broker.consumers.locks.Locks"
BELIEVE = {"halfmoon.client.core.missing_brokers.MissingBrokers.completed": believe}
PLANTED = [
    planted("late", kinds=RESTARTS, make_broker=Unhurried),
    planted("key:", kinds=RESTARTS, brokers=2, make_broker=Unhurried, patch=BELIEVE),
    planted("owner", make_broker=Generous),
    planted("side by side", make_broker=Generous),
    planted("order", make_broker=tampered(ahead)),
    planted("keys", make_broker=tampered(keys_swapped)),
    planted("never consumed", make_broker=forgetful),
    planted("side by side", patch={f"{CONSUMER}._remove": remove}),
    planted("order", patch={f"{CONSUMER}._finish": finish}),
    planted("owner", kinds=("lose", "join"), patch={f"{CONSUMER}.disconnected": keep_connected}),
    planted("owner", kinds=("join", "cut"), broker={"client_expiry_ms": 10_000}, patch={f"{LOCKS}.lost": give_away}),
]


@pytest.mark.parametrize(("checker", "options"), PLANTED)
def test_a_planted_fault_of_order_is_found(checker: str, options: dict[str, Any]) -> None:
    assert finds(Order, BITE, checker, **{"kinds": ("join",), **options})


def test_without_a_fault_the_same_seeds_hold() -> None:
    assert [simulate(Order, seed, kinds=("join",)).problems for seed in BITE[:2]] == [[], []]


# ---------------------------------------------------------------- checkers


QUEUE = MessageQueue("orders", "broker-a", 0)


def call(number: int, consumer: str = "c1") -> ListenerCall:
    begin_ms = 100_000 + 100 * number
    return ListenerCall(begin_ms, consumer, QUEUE, number, b"key/%d" % number, consumer, number, begin_ms + 50, good=True)


def ledger(*calls: ListenerCall) -> OrderLedger:
    return OrderLedger(list(calls), {call.body: f"broker-a/0@{call.offset}" for call in calls})


def checkers(facts: OrderLedger) -> list[str]:
    return [name for name, problems in check_order(facts).items() if problems]


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
