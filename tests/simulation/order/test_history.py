"""Ordered consumption while consumers come, go and crash: strict order, one owner a queue; and the checkers bite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from random import Random
from typing import Any

import pytest

from halfmoon.broker.broker import Broker
from halfmoon.broker.consumers.locks import Locks
from halfmoon.client.core.consume.orderly import OrderlyConsumerCore
from halfmoon.client.core.consume.push_consumer import PushConsumerCore
from halfmoon.client.core.missing_brokers import MissingBrokers
from halfmoon.client.core.route import Route
from halfmoon.settings import overwrite
from halfmoon.wire.command import Command
from halfmoon.wire.headers.offset import OffsetReply
from simulation.history import BROKER
from simulation.order.history import OrderVerdict, simulate_order
from tests.simulation.finding import some_seed_finds
from tests.simulation.messages.planted import QUERY_OFFSET, tampered

SEEDS = range(1, 11)
KEPT = (61130,)  # a consumer is cut off behind a pull that came some time after its last heartbeat
BITE = range(1, 7)


@cache
def history(seed: int) -> OrderVerdict:
    """Return the verdict on a seed's own history."""
    return simulate_order(seed)


@pytest.mark.mission("004-15")
@pytest.mark.parametrize("seed", [*SEEDS, *KEPT])
def test_order_is_kept_whatever_happens(seed: int) -> None:
    verdict = history(seed)
    assert verdict.problems == [], verdict.summary()


@pytest.mark.mission("004-15")
@pytest.mark.parametrize("seed", range(21, 25))
def test_order_is_kept_though_consumers_are_cut_off_and_come_back(seed: int) -> None:
    verdict = simulate_order(seed, kinds=("join", "cut", "leave"))
    assert verdict.problems == [], verdict.summary()


@pytest.mark.mission("004-15")
@pytest.mark.parametrize("seed", range(11, 17))
def test_order_is_kept_and_calls_never_overlap_while_consumers_join_leave_and_crash(seed: int) -> None:
    verdict = simulate_order(seed, kinds=("join", "leave", "crash"))
    assert verdict.problems == [], verdict.summary()


def test_clean_hand_overs_repeat_nothing() -> None:
    verdicts = [simulate_order(seed, kinds=("join", "leave")) for seed in (1, 2)]
    assert [(verdict.problems, verdict.again) for verdict in verdicts] == [([], 0), ([], 0)]
    assert sum(verdict.owners for verdict in verdicts) > 5


def test_histories_of_order_are_worth_judging() -> None:
    verdicts = [history(seed) for seed in SEEDS]
    assert sum(verdict.acknowledged for verdict in verdicts) > 2_000
    assert sum(verdict.failed for verdict in verdicts) > 200
    assert sum(verdict.owners for verdict in verdicts) > 50


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
    verdict = simulate_order(seed, kinds=RESTARTS, brokers=2)
    assert verdict.problems == [], verdict.summary()


@pytest.mark.parametrize("seed", range(31, 33))
def test_a_key_keeps_its_queue_though_a_name_server_knows_no_broker_for_half_a_minute(seed: int) -> None:
    verdict = simulate_order(seed, kinds=RESTARTS, brokers=2, make_broker=Unhurried)
    assert {problem.partition(":")[0] for problem in verdict.problems} == {"late"}


# ---------------------------------------------------------------- planted faults


def test_a_broker_that_a_restarted_name_server_does_not_know_is_found() -> None:
    assert some_seed_finds(simulate_order, BITE, "late", kinds=RESTARTS, make_broker=Unhurried)


def test_a_client_that_believes_a_fresh_name_server_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def believe(self: MissingBrokers, topic: str, known: Route, answer: Route) -> Any:
        yield from ()
        return answer

    monkeypatch.setattr(MissingBrokers, "completed", believe)
    assert some_seed_finds(simulate_order, BITE, "key:", kinds=RESTARTS, brokers=2, make_broker=Unhurried)


found = partial(some_seed_finds, simulate_order, BITE, kinds=("join",))


class Generous(Broker):
    """Locks every queue for everybody."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.locks._take = lambda *arguments, **values: True  # type: ignore[method-assign]


def test_a_broker_that_locks_a_queue_for_two_is_found() -> None:
    assert found("owner", make_broker=Generous)
    assert found("side by side", make_broker=Generous)


def ahead(chance: Random) -> Callable[[int, Command], None]:
    """Answer a group's offset with one more, now and then."""

    def tamper(code: int, reply: Command) -> None:
        header = reply.header(OffsetReply) if code == QUERY_OFFSET else None
        if header is not None and header.offset > 3 and chance.random() < 0.5:
            reply.fields = {**reply.fields, "offset": str(header.offset + 1)}

    return tamper


def test_a_message_that_is_left_out_at_a_hand_over_is_found() -> None:
    assert found("order", make_broker=tampered(ahead))


def test_a_client_that_gives_a_queue_up_while_its_listener_has_a_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(core: OrderlyConsumerCore, held: Any) -> Any:
        yield from PushConsumerCore._remove(core, held)
        yield from core._unlock([held.queue])

    monkeypatch.setattr(OrderlyConsumerCore, "_remove", remove)
    assert found("side by side")


def test_a_client_that_goes_on_behind_a_failed_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(core: OrderlyConsumerCore, held: Any, messages: Any, said: Any) -> Any:
        core._advance(held, messages)
        yield from ()

    monkeypatch.setattr(OrderlyConsumerCore, "_finish", finish)
    assert found("order")


def test_a_client_that_does_not_mind_a_lost_connection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OrderlyConsumerCore, "disconnected", lambda core, address: None)
    assert found("owner", kinds=("lose", "join"))


def test_a_broker_that_gives_away_the_locks_of_a_client_that_it_only_does_not_hear_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = Locks.lost
    monkeypatch.setattr(Locks, "lost", lambda locks, peer, by_us: lost(locks, peer, by_us=False))
    assert found("owner", kinds=("join", "cut"), broker={**BROKER, "client_expiry_ms": 10_000})
