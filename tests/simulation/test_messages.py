"""A history's verdict: what it counts, and that nothing which goes wrong is passed over."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from halfmoon.broker.broker import Broker
from halfmoon.testing.cluster import Cluster
from halfmoon.testing.host import Closed
from simulation.history import History, Workload, simulate
from simulation.ledger import Contents, Queue
from simulation.messages import Messages, called_silent, searches_differ
from tests.simulation.faulty import finds, planted
from tests.simulation.planted import (
    BadIndexDisk,
    BadKeysDisk,
    ForgettingDisk,
    LyingDisk,
    UnreservedDisk,
    changing_records,
    forgetful,
    hasty,
    loose,
    offsets_beyond_the_end,
    silent,
    skipping_records,
    stubborn,
    tampered,
    wrong_offsets,
)


def test_a_verdict_says_what_happened_in_one_line() -> None:
    verdict = simulate(Messages, 4, kinds=("lose",), flush="sync")
    assert verdict.summary().startswith("seed 4, messages: held; sync flush, ")
    assert verdict.summary().endswith("; lose")
    assert min(verdict["acknowledged"], verdict["read"], verdict.events) > 50
    assert verdict.virtual_ms > 5_000


def test_what_a_core_raises_is_a_problem() -> None:
    class Broken(Broker):
        def commit(self, now: int) -> None:
            raise ZeroDivisionError("of all things")

    verdict = simulate(Messages, 4, kinds=(), make_broker=Broken)
    assert verdict.problems == ["raised: ZeroDivisionError: of all things"]


def test_an_error_that_is_logged_is_a_problem() -> None:
    def make(*arguments: Any) -> Broker:
        logging.getLogger("halfmoon.broker").error("something is %s", "wrong")
        return Broker(*arguments)

    assert any("logged: something is wrong" in problem for problem in simulate(Messages, 4, kinds=(), make_broker=make).problems)


def test_a_user_who_hangs_is_a_problem() -> None:
    class Silent(Broker):
        def effects(self) -> list[Any]:
            super().effects()
            return []

    verdict = simulate(Messages, 4, kinds=(), make_broker=Silent)
    assert verdict.problems


@pytest.mark.parametrize(
    ("heard_ms", "reason", "fine"),
    [
        (20_000 - 15_000, "no heartbeat", True),
        (20_000 - 14_000, "no heartbeat", True),  # the last heartbeat came up to a second before another request did
        (20_000 - 13_999, "no heartbeat", False),
        (20_000 - 14_999, "silent for 15000 ms", False),  # what any bytes end
        (19_999, "a bad frame", True),
    ],
)
def test_a_connection_may_be_called_silent_only_after_its_time(heard_ms: int, reason: str, fine: bool) -> None:
    cluster = Cluster(seed=1, brokers=1)
    cluster.brokers[0].host.closed.append(Closed(20_000, heard_ms, "10.0.2.4:30012", reason))
    assert (called_silent(cluster, 15_000, beat_ms=1_000) == []) is fine


# ---------------------------------------------------------------- planted faults


PLANTED = [
    planted("lost", make_broker=forgetful),
    planted("lost", flush="sync", kinds=("power", "slow_disk"), make_broker=hasty),
    planted("unexpected: Place", flush="sync", kinds=("slow_disk",), make_broker=loose),
    planted("lost", flush="sync", kinds=("failed_sync", "power"), make_broker=stubborn),
    planted("lost", flush="sync", kinds=("power",), wrap_disk=LyingDisk),
    planted("offsets", make_broker=tampered(wrong_offsets(-1))),
    planted("offsets", kinds=("power",), wrap_disk=UnreservedDisk),
    planted("order", make_broker=tampered(wrong_offsets(3))),
    planted("reads", make_broker=tampered(changing_records)),
    planted("offsets", flush="sync", make_broker=tampered(skipping_records)),
    planted("consumer offsets", make_broker=tampered(offsets_beyond_the_end)),
    planted("consumer offsets", kinds=("kill",), wrap_disk=ForgettingDisk),
    planted("indexes", wrap_disk=BadIndexDisk),
    planted("indexes", wrap_disk=BadKeysDisk),
    planted("routes", make_broker=silent),
    planted("refusing", flush=None, kinds=("descriptors",), patch={"halfmoon.store.health.passes": lambda error: False}),
]


@pytest.mark.parametrize(("checker", "options"), PLANTED)
def test_a_planted_fault_of_messages_is_found(checker: str, options: dict[str, Any]) -> None:
    assert finds(Messages, range(12), checker, **{"flush": "async", "kinds": (), **options})


def test_without_a_fault_the_same_seeds_hold() -> None:
    assert [simulate(Messages, seed, kinds=()).problems for seed in range(3)] == [[], [], []]


# ---------------------------------------------------------------- searches


@pytest.fixture
def filled() -> tuple[History, Contents]:
    history = History(Workload, 1, flush="async")
    history.make_world()
    history.create_topics("orders", queues=1)
    for number in range(5):
        history.cluster.send("orders", b"%d" % number)
        history.cluster.run(ms=20)
    return history, history.contents(history.places(["orders"], 1))


def test_a_good_broker_answers_what_its_queues_hold(filled: tuple[History, Contents]) -> None:
    history, contents = filled
    assert searches_differ(history.cluster, history.plan, contents, history.messages) == []


def test_messages_that_the_broker_does_not_have_are_not_found(filled: tuple[History, Contents]) -> None:
    history, contents = filled
    [(place, queue)] = contents.items()
    moved = {offset: seen._replace(physical_offset=seen.physical_offset + 1) for offset, seen in queue.messages.items()}
    problems = searches_differ(history.cluster, history.plan, {place: Queue(0, 5, moved)}, replace(history.messages))
    assert {problem.partition(" lies at")[0] for problem in problems} == {f"{place}@{offset}" for offset in range(5)}
