"""Redelivery under random faults: what fails comes again until its maximum and then is dead, nothing is lost; the checkers bite."""

from __future__ import annotations

from functools import cache, partial
from random import Random
from typing import Any

import pytest

from halfmoon.broker.consumers.redelivery import Copy
from halfmoon.broker.request import Reply, Request
from simulation.redelivery.history import RedeliveryVerdict, simulate_redelivery
from tests.simulation.faulty import faulty_broker
from tests.simulation.finding import some_seed_finds
from tests.simulation.messages.planted import LyingDisk

SEEDS = range(1, 16)
BITE = range(1, 8)


@cache
def history(seed: int) -> RedeliveryVerdict:
    """Return the verdict on a seed's own history."""
    return simulate_redelivery(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_of_redelivery_holds(seed: int) -> None:
    verdict = history(seed)
    assert verdict.problems == [], verdict.summary()


@pytest.mark.parametrize("seed", [30002, 30071, 30105])
def test_a_history_of_redelivery_that_once_broke_a_promise_holds(seed: int) -> None:
    """The first two were judged too early; in the third, entries behind the end of a queue file were read for others."""
    verdict = simulate_redelivery(seed, steps=6)
    assert verdict.problems == [], verdict.summary()


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", [1, 2])
def test_consumers_and_brokers_that_are_killed_lose_nothing(seed: int, flush: str) -> None:
    verdict = simulate_redelivery(seed, flush=flush, kinds=("consumer", "kill", "torn"), steps=10)
    assert verdict.problems == [], verdict.summary()
    assert any("is killed" in line for line in verdict.lines)


@pytest.mark.parametrize("seed", [1, 2])
def test_with_sync_flush_no_loss_of_power_takes_a_message_that_was_given_back(seed: int) -> None:
    verdict = simulate_redelivery(seed, flush="sync", kinds=("power",), steps=10)
    assert verdict.problems == [], verdict.summary()
    assert sum("loses power" in line for line in verdict.lines) > 3


def test_histories_of_redelivery_are_worth_judging() -> None:
    verdicts = [history(seed) for seed in range(1, 6)]
    assert sum(verdict.failed for verdict in verdicts) > 300
    assert sum(verdict.dead for verdict in verdicts) > 50


# ---------------------------------------------------------------- planted faults


found = partial(some_seed_finds, simulate_redelivery, BITE)


@faulty_broker
def forgetful(broker: Any) -> None:
    """A broker that now and then says that it took a message back, and did not."""
    redelivery, chance = broker.redelivery, Random(1)
    store_copy = redelivery._store_copy

    def stored(request: Request, copy: Copy) -> None:
        if chance.random() < 0.1:
            broker.pending_replies.reply(request, Reply())
        else:
            store_copy(request, copy)

    redelivery._store_copy = stored  # type: ignore[method-assign]


@faulty_broker
def burying(broker: Any) -> None:
    """A broker that drops what was tried often enough instead of keeping it with the dead letters."""
    redelivery = broker.redelivery
    store_copy = redelivery._store_copy

    def stored(request: Request, copy: Copy) -> None:
        if copy.topic.startswith("%DLQ%"):
            broker.pending_replies.reply(request, Reply())
        else:
            store_copy(request, copy)

    redelivery._store_copy = stored  # type: ignore[method-assign]


@faulty_broker
def hasty(broker: Any) -> None:
    """A broker for which every level is the first."""
    park = broker.delays.park
    broker.delays.park = lambda topic, queue_id, level, *more: park(topic, queue_id, 1, *more)  # type: ignore[method-assign]


@faulty_broker
def impatient(broker: Any) -> None:
    """A broker that counts one try too many, and so gives up one too early."""
    redelivery = broker.redelivery
    make = redelivery._copy

    def copied(header: Any, config: Any, parts: Any, *more: Any) -> Any:
        return make(header, config, parts._replace(reconsume_times=parts.reconsume_times + 2), *more)

    redelivery._copy = copied  # type: ignore[method-assign, assignment]


@faulty_broker
def silent(broker: Any) -> None:
    """A broker that does not keep why a message failed."""
    redelivery = broker.redelivery
    given = redelivery._given

    def without_reason(header: Any) -> Any:
        header.reason = None
        return given(header)

    redelivery._given = without_reason  # type: ignore[method-assign]


def test_a_message_that_was_taken_back_and_not_stored_is_found() -> None:
    assert found("lost", flush="async", kinds=(), make_broker=forgetful)


def test_a_dead_letter_that_is_dropped_is_found() -> None:
    assert found("lost", flush="async", kinds=(), make_broker=burying)


def test_copies_that_a_disk_only_says_to_have_synced_are_found() -> None:
    assert found("lost", flush="sync", kinds=("power",), wrap_disk=LyingDisk)


def test_a_redelivery_before_its_time_is_found() -> None:
    assert found("early", flush="async", kinds=(), make_broker=hasty)


def test_a_message_that_is_given_up_too_early_is_found() -> None:
    assert found("dead", flush="async", kinds=(), make_broker=impatient)


def test_a_reason_that_is_forgotten_is_found() -> None:
    assert found("shown", flush="async", kinds=(), make_broker=silent)
