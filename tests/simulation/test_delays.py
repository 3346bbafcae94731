"""Delayed messages under faults: none early, none lost, none twice after a kill; and the checkers bite."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from halfmoon.broker.broker import Broker
from halfmoon.broker.delay.delivery import Due
from simulation.delays import DelayLedger, Delays, Delivered, Wish, check_delays
from simulation.history import simulate
from simulation.ledger import Ledger
from tests.simulation.faulty import finds, planted, verdict_on

SEEDS = range(1, 9)
BITE = range(1, 5)


history = partial(verdict_on, Delays)


@pytest.mark.mission("001-32")
@pytest.mark.mission("001-40")
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_early_and_nothing_is_lost_whatever_happens(seed: int) -> None:
    assert history(seed).problems == []


@pytest.mark.parametrize("seed", range(31, 34))
@pytest.mark.parametrize("kinds", [("torn",), ("kill",)], ids="-".join)
def test_a_process_that_dies_repeats_nothing(seed: int, kinds: tuple[str, ...]) -> None:
    assert simulate(Delays, seed, kinds=kinds, steps=12).problems == []


@pytest.mark.parametrize("seed", [110, 154])
def test_several_deliveries_that_wait_for_new_queues_repeat_nothing_after_a_kill(seed: int) -> None:
    assert simulate(Delays, seed, kinds=("torn", "slow_disk")).problems == []


@pytest.mark.parametrize("seed", range(41, 45))
def test_a_loss_of_power_loses_nothing(seed: int) -> None:
    assert simulate(Delays, seed, kinds=("power",), flush="sync").problems == []


@pytest.mark.parametrize("seed", range(51, 54))
@pytest.mark.parametrize("kinds", [("ahead", "kill"), ("ahead", "torn", "slow_disk")], ids="-".join)
def test_a_clock_that_was_ahead_loses_nothing_and_delays_nothing(seed: int, kinds: tuple[str, ...]) -> None:
    assert simulate(Delays, seed, kinds=kinds, steps=12).problems == []


def test_histories_of_delays_are_worth_judging() -> None:
    verdicts = [history(seed) for seed in SEEDS]
    assert sum(verdict["acknowledged"] for verdict in verdicts) > 1_000
    assert sum(verdict["recalled"] for verdict in verdicts) > 50
    assert sum(verdict["delivered"] for verdict in verdicts) > 1_000


# ---------------------------------------------------------------- planted faults


class Hasty(Broker):
    """Counts each level shorter than it is."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.delays.levels.delays_ms = [delay_ms - 60 for delay_ms in self.delays.levels.delays_ms]


class Forgetful(Broker):
    """Believes after a start that everything that was parked is delivered."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        for level, lane in self.delays.level_queues.items():
            lane.offset = self.store.queue_max("SCHEDULE_TOPIC_XXXX", level - 1)


class Deaf(Broker):
    """Answers a recall and does nothing."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        timer = self.delays.timer
        cancel = timer.cancel

        def heard(topic: str, key: str, entry: Any, *rest: Any) -> Any:
            found = cancel(topic, key, entry, *rest)
            timer.index.insert(entry.tag_code, entry.queue_offset)
            return found

        timer.cancel = heard  # type: ignore[method-assign,assignment]


class Unsaved(Broker):
    """Writes down what it delivered only in the saved tables."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.delays.progress._write = lambda progress: None  # type: ignore[method-assign]


class Trusting(Broker):
    """Takes what is parked before the last delivery, for the clock was set back, for delivered at the next start."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.delays.timer.marks.parked = lambda due, offset, begun: None  # type: ignore[method-assign]


class Waiting(Broker):
    """Delivers nothing before what it delivered while its clock was ahead."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        timer = self.delays.timer
        park = timer.park

        def parked(topic: str, queue_id: int, deliver_ms: int, *rest: Any, identity: int = 0) -> Any:
            return park(topic, queue_id, max(deliver_ms, timer.marks.at(0)[-1].due + 1), *rest, identity=identity)

        timer.park = parked  # type: ignore[method-assign]


class Reversed(Broker):
    """Delivers what is due at once the wrong way round."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        deliveries = self.delays.deliveries
        store = deliveries.store

        def backwards(messages: Sequence[Due], now: int) -> list[Due]:
            return store(messages[::-1], now)

        deliveries.store = backwards  # type: ignore[method-assign]


PLANTED = [
    planted("early", make_broker=Hasty),
    planted("lost", make_broker=Forgetful),
    planted("twice", make_broker=Unsaved),
    planted("recalled", make_broker=Deaf),
    planted("order", make_broker=Reversed),
    planted("lost", make_broker=Trusting, kinds=("ahead", "kill"), steps=12),
    planted("lost", make_broker=Waiting, kinds=("ahead",), steps=12),
]


@pytest.mark.parametrize(("checker", "options"), PLANTED)
def test_a_planted_fault_of_delays_is_found(checker: str, options: dict[str, Any]) -> None:
    assert finds(Delays, BITE, checker, **{"kinds": ("kill",), **options})


# ---------------------------------------------------------------- checkers


def ledger() -> DelayLedger:
    facts = DelayLedger(Ledger("sync"), once=True)
    for number in range(2):
        facts.wishes[b"%d" % number] = Wish("s", number, 0, 1, due_ms=1000, attempts=1, acked=True)
        facts.delivered.append(Delivered(b"%d" % number, 0, number, 1000 + number))
    return facts


def checkers(facts: DelayLedger) -> list[str]:
    return sorted(name for name, problems in check_delays(facts).items() if problems)


def test_what_comes_once_in_time_and_order_is_well() -> None:
    assert checkers(ledger()) == []


def test_early_lost_repeated_and_recalled_messages_are_found() -> None:
    facts = ledger()
    facts.delivered[0].store_ms = 999
    assert checkers(facts) == ["early"]
    facts = ledger()
    facts.delivered.pop()
    assert checkers(facts) == ["lost"]
    facts = ledger()
    facts.delivered.append(facts.delivered[1])
    assert checkers(facts) == ["twice"]
    facts = ledger()
    facts.wishes[b"0"].recalled = True
    assert checkers(facts) == ["recalled"]


def test_another_order_is_found() -> None:
    facts = ledger()
    facts.delivered.reverse()
    assert checkers(facts) == ["order"]
