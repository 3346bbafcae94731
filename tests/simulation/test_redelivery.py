"""Redelivery under random faults: what fails comes again until its maximum and then is dead, nothing is lost; the checkers bite."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest

from halfmoon.broker.consumers.redelivery import RedeliveredCopy
from halfmoon.broker.request import Reply, Request
from simulation.history import simulate
from simulation.ledger import Ledger
from simulation.redelivery import FOR_EVER, Dead, Handed, Redelivery, RedeliveryLedger, check_redelivery
from tests.simulation.faulty import faulty_broker, finds, planted, verdict_on
from tests.simulation.planted import LyingDisk

SEEDS = range(1, 16)
BITE = range(1, 8)


history = partial(verdict_on, Redelivery)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_of_redelivery_holds(seed: int) -> None:
    assert history(seed).problems == []


@pytest.mark.parametrize("seed", [30002, 30071, 30105])
def test_a_history_of_redelivery_that_once_broke_a_promise_holds(seed: int) -> None:
    """The first two were judged too early; in the third, entries behind the end of a queue file were read for others."""
    assert simulate(Redelivery, seed, steps=6).problems == []


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", [1, 2])
def test_consumers_and_brokers_that_are_killed_lose_nothing(seed: int, flush: str) -> None:
    verdict = simulate(Redelivery, seed, flush=flush, kinds=("consumer", "kill", "torn"), steps=10)
    assert verdict.problems == [], verdict.summary()
    assert any("is killed" in line for line in verdict.lines)


@pytest.mark.parametrize("seed", [1, 2])
def test_with_sync_flush_no_loss_of_power_takes_a_message_that_was_given_back(seed: int) -> None:
    verdict = simulate(Redelivery, seed, flush="sync", kinds=("power",), steps=10)
    assert verdict.problems == [], verdict.summary()
    assert sum("loses power" in line for line in verdict.lines) > 3


def test_histories_of_redelivery_are_worth_judging() -> None:
    verdicts = [history(seed) for seed in range(1, 6)]
    assert sum(verdict["failed"] for verdict in verdicts) > 300
    assert sum(verdict["dead"] for verdict in verdicts) > 50


# ---------------------------------------------------------------- planted faults


@faulty_broker
def forgetful(broker: Any) -> None:
    """A broker that now and then says that it took a message back, and did not."""
    redelivery, chance = broker.redelivery, Random(1)
    store_copy = redelivery._store_copy

    def stored(request: Request, copy: RedeliveredCopy) -> None:
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

    def stored(request: Request, copy: RedeliveredCopy) -> None:
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


PLANTED = [
    planted("lost", make_broker=forgetful),
    planted("lost", make_broker=burying),
    planted("lost", flush="sync", kinds=("power",), wrap_disk=LyingDisk),
    planted("early", make_broker=hasty),
    planted("dead", make_broker=impatient),
    planted("shown", make_broker=silent),
]


@pytest.mark.parametrize(("checker", "options"), PLANTED)
def test_a_planted_fault_of_redelivery_is_found(checker: str, options: dict[str, Any]) -> None:
    assert finds(Redelivery, BITE, checker, **{"flush": "async", "kinds": (), **options})


# ---------------------------------------------------------------- checkers


def handed(times: int, store_ms: int, *, good: bool = False, level: int = 0) -> Handed:
    return Handed(store_ms, b"m", "broker-a", f"copy {times}", times > 0, times, store_ms, good, level, "why")


def ledger(*calls: Handed, fate: int, dead: Dead | None = None) -> RedeliveryLedger:
    facts = RedeliveryLedger(Ledger("sync"), "orders", 2, (1000, 2000, 3000))
    facts.fates[b"m"], facts.acked[b"m"], facts.handed = fate, (0, "broker-a"), list(calls)
    facts.dead = [dead] if dead else []
    return facts


def checkers(facts: RedeliveryLedger) -> list[str]:
    return [name for name, problems in check_redelivery(facts).items() if problems]


def test_a_message_that_works_at_last_or_is_dead_after_its_tries_is_well() -> None:
    assert checkers(ledger(handed(0, 0), handed(1, 3000, good=True), fate=1)) == []
    assert checkers(ledger(handed(0, 0), handed(1, 3000), fate=FOR_EVER, dead=Dead(b"m", 2, "orders", "why"))) == []


def test_a_message_that_is_nowhere_is_lost() -> None:
    assert checkers(ledger(handed(0, 0), fate=1)) == ["lost"]


def test_a_copy_that_comes_before_its_level_is_early() -> None:
    assert checkers(ledger(handed(0, 0), handed(1, 2999, good=True), fate=1)) == ["early"]


def test_a_dead_letter_that_would_have_worked_and_shows_another_origin_is_found() -> None:
    facts = ledger(handed(0, 0), fate=1, dead=Dead(b"m", 1, "payments", "why"))
    assert checkers(facts) == ["dead", "shown"]
