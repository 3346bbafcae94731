"""Delayed messages under faults: none early, none lost, none twice after a kill; and the checkers bite."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest

from halfmoon.broker.broker import Broker
from simulation.delays.history import DelayVerdict, simulate_delays
from tests.simulation.finding import some_seed_finds

SEEDS = range(1, 9)
BITE = range(1, 5)


@cache
def history(seed: int) -> DelayVerdict:
    """Return the verdict on a seed's own history."""
    return simulate_delays(seed)


@pytest.mark.mission("001-32")
@pytest.mark.mission("001-40")
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_early_and_nothing_is_lost_whatever_happens(seed: int) -> None:
    verdict = history(seed)
    assert verdict.problems == [], verdict.summary()


@pytest.mark.parametrize("seed", range(31, 34))
@pytest.mark.parametrize("kinds", [("torn",), ("kill",)], ids="-".join)
def test_a_process_that_dies_repeats_nothing(seed: int, kinds: tuple[str, ...]) -> None:
    verdict = simulate_delays(seed, kinds=kinds, steps=12)
    assert verdict.problems == [], verdict.summary()


@pytest.mark.parametrize("seed", [110, 154])
def test_several_deliveries_that_wait_for_new_queues_repeat_nothing_after_a_kill(seed: int) -> None:
    verdict = simulate_delays(seed, kinds=("torn", "slow_disk"))
    assert verdict.problems == [], verdict.summary()


@pytest.mark.parametrize("seed", range(41, 45))
def test_a_loss_of_power_loses_nothing(seed: int) -> None:
    verdict = simulate_delays(seed, kinds=("power",), flush="sync")
    assert verdict.problems == [], verdict.summary()


@pytest.mark.parametrize("seed", range(51, 54))
@pytest.mark.parametrize("kinds", [("ahead", "kill"), ("ahead", "torn", "slow_disk")], ids="-".join)
def test_a_clock_that_was_ahead_loses_nothing_and_delays_nothing(seed: int, kinds: tuple[str, ...]) -> None:
    verdict = simulate_delays(seed, kinds=kinds, steps=12)
    assert verdict.problems == [], verdict.summary()


def test_histories_of_delays_are_worth_judging() -> None:
    verdicts = [history(seed) for seed in SEEDS]
    assert sum(verdict.acknowledged for verdict in verdicts) > 1_000
    assert sum(verdict.recalled for verdict in verdicts) > 50
    assert sum(verdict.delivered for verdict in verdicts) > 1_000


# ---------------------------------------------------------------- planted faults


found = partial(some_seed_finds, simulate_delays, BITE, kinds=("kill",))


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
        self.delays._progress._write = lambda progress: None  # type: ignore[method-assign]


def test_a_message_that_comes_early_is_found() -> None:
    assert found("early", make_broker=Hasty)


def test_a_message_that_is_lost_is_found() -> None:
    assert found("lost", make_broker=Forgetful)


def test_a_message_that_comes_twice_is_found() -> None:
    assert found("twice", make_broker=Unsaved)


def test_a_recalled_message_that_comes_is_found() -> None:
    assert found("recalled", make_broker=Deaf)


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


@pytest.mark.parametrize(("broker", "kinds"), [(Trusting, ("ahead", "kill")), (Waiting, ("ahead",))])
def test_a_message_that_a_clock_which_was_ahead_loses_or_delays_is_found(broker: type[Broker], kinds: tuple[str, ...]) -> None:
    assert some_seed_finds(simulate_delays, BITE, "lost", make_broker=broker, kinds=kinds, steps=12)
