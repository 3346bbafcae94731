"""Processes killed with -9 at every step and at random times, over and over: the rows of the database and the events that were
consumed agree in the end, by id.

Publishers are `tests.events.outcomes.victim`, in processes of their own, with a real broker and a real database. Seeds are fixed;
what a kill hits besides is the machine's business.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon.testing.local import LocalCluster
from tests.events.outcomes.consuming_victim import effects, make_effects
from tests.events.outcomes.forked import Forked
from tests.events.outcomes.shop import PROPORTIONS, Shop
from tests.events.outcomes.victim import DIE_AT, DIE_ON, OUTBOX_STEPS, STEPS, start
from tests.waiting import until

KILLS = 5
KILL_S = float(os.environ.get("HALFMOON_KILL_S", "0"))
"""For how long publishers are killed at random times, at least `KILLS` of them; 600 for a long run, ``-k random_times``."""
ENDLESS = 1_000_000

pytestmark = pytest.mark.slow

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker with the proportions of the defaults."""
    with LocalCluster(tmp_path_factory.mktemp("kills") / "store", PROPORTIONS) as cluster:
        yield cluster


@pytest.fixture
def shop(broker: LocalCluster, database_url: str, request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A shop whose own publisher is the member of the group that lives; its consumer is never killed."""
    found = Shop(broker, database_url, f"kill_{next(_numbers)}", mode=getattr(request, "param", "two-phase"))
    yield found
    found.close()


def options(shop: Shop, mode: str, *, orders: int, seed: int) -> list[str]:
    return [
        *("--topic", shop.topic, "--group", shop.producers, "--mode", mode),
        *("--orders", str(orders), "--seed", str(seed)),
    ]


def published(output: str) -> list[str]:
    """The ids of the events that a process was about to publish."""
    return [line.split()[1] for line in output.splitlines() if line.startswith("event ") and len(line.split()) == 2]


def agree(shop: Shop, attempted: list[str]) -> None:
    """Wait until nothing is undecided, and check that rows and consumed events are the same, each event once."""
    shop.events.start()
    until(lambda: not shop.admin.pending_transactions(group=shop.producers), "all is decided")
    rows = shop.orders()
    until(lambda: set(shop.seen()) >= rows, f"{len(rows)} events")
    assert set(attempted) >= rows
    assert shop.seen() == Counter(rows)
    assert shop.visible() == len(rows)


@pytest.mark.mission("002-52", "002-53")
def test_rows_and_events_agree_after_a_kill_at_each_step(shop: Shop, database_url: str):
    attempted = []
    for number, step in enumerate(STEPS):
        given = options(shop, "two-phase", orders=3, seed=number)
        process = start(shop.network.nameserver, database_url, [*given, "--rollbacks", "0"], {DIE_AT: step, DIE_ON: "2"})
        output, _ = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, f"{step}: {output}"
        attempted += published(output)

    agree(shop, attempted)

    before_commit = STEPS.index("before commit") + 1
    # Decisions are taken beside the orders, so that a process may die at one while its second order is still open.
    assert len(STEPS) <= len(shop.orders()) <= 2 * len(STEPS) - before_commit
    assert len(STEPS) <= len(attempted) < 2 * len(STEPS)  # and one died before it had an event


def kill_publishers(shop: Shop, url: str, mode: str, seed: int) -> list[str]:
    """Start a publisher again and again and kill it in the middle; return the ids of all events that were begun."""
    dice, attempted = random.Random(seed), []
    end = time.monotonic() + KILL_S
    for number in itertools.takewhile(lambda number: number < KILLS or time.monotonic() < end, itertools.count()):
        given = [*options(shop, mode, orders=ENDLESS, seed=number), "--events", str(1 + number % 3)]
        process = start(shop.network.nameserver, url, given, {})
        assert process.stdout.readline() == "ready\n"
        stuck = threading.Timer(120, process.kill)
        stuck.start()
        output = "".join(process.stdout.readline() for _ in range(dice.randint(3, 40)))
        assert not stuck.finished.is_set(), "the publisher said nothing for two minutes"
        stuck.cancel()
        time.sleep(dice.uniform(0, 0.05))
        process.kill()
        output += process.stdout.read()
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        attempted += published(output)
    return attempted


@pytest.mark.mission("002-52", "002-53")
def test_rows_and_events_agree_after_kills_at_random_times(shop: Shop, database_url: str):
    shop.events.start()  # asked about the others' events while those run, too

    attempted = kill_publishers(shop, database_url, "two-phase", seed=6)

    agree(shop, attempted)
    assert len(shop.orders()) > KILLS


# ---------------------------------------------------------------- through the outbox: at least once, and nothing else


def agree_in_the_end(shop: Shop, attempted: list[str]) -> None:
    """Check that rows and consumed events are the same; an event may have come again when its relay was killed."""
    shop.events.start()
    rows = shop.orders()
    until(lambda: set(shop.seen()) >= rows, f"{len(rows)} events")
    assert set(shop.seen()) == rows
    assert set(attempted) >= rows


@pytest.mark.parametrize("shop", ["outbox"], indirect=True)
def test_rows_and_events_of_the_outbox_agree_after_a_kill_at_each_step(shop: Shop, database_url: str):
    attempted = []
    for number, step in enumerate(OUTBOX_STEPS):
        given = [*options(shop, "outbox", orders=3, seed=number), "--rollbacks", "0", "--linger-s", "30"]
        process = start(shop.network.nameserver, database_url, given, {DIE_AT: step, DIE_ON: "3" if "post" in step else "2"})
        output, _ = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, f"{step}: {output}"
        attempted += published(output)

    agree_in_the_end(shop, attempted)
    assert len(shop.orders()) > len(OUTBOX_STEPS)


@pytest.mark.parametrize("shop", ["outbox"], indirect=True)
def test_rows_and_events_of_the_outbox_agree_after_kills_at_random_times(shop: Shop, database_url: str):
    attempted = kill_publishers(shop, database_url, "outbox", seed=7)

    agree_in_the_end(shop, attempted)
    assert len(shop.orders()) > KILLS


# ---------------------------------------------------------------- consumers, too: effects exactly once


def consuming(shop: Shop, url: str) -> Forked:
    arguments = [shop.cluster.nameserver, url, "--topic", shop.topic, "--group", f"{shop.group}_dedup"]
    process = Forked("tests.events.outcomes.consuming_victim", arguments)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("shop", ["outbox"], indirect=True)
def test_effects_happen_once_though_publishers_and_consumers_are_killed(shop: Shop, database_url: str, tmp_path: Path):
    make_effects(shop.engine)
    dice, attempted = random.Random(8), []
    for number in range(4):
        consumer = consuming(shop, database_url)
        process = start(shop.network.nameserver, database_url, options(shop, "outbox", orders=ENDLESS, seed=number), {})
        process.stdout.readline()
        time.sleep(dice.uniform(0.1, 0.5))
        for one in (consumer, process) if dice.random() < 0.5 else (process, consumer):
            one.kill()
        attempted += published(process.stdout.read())
        for one in (process, consumer):
            one.wait()
            one.stdout.close()
    last = consuming(shop, database_url)
    try:
        shop.events.start()
        until(lambda: set(effects(shop.engine)) >= shop.orders(), "every order has its effect")
        assert effects(shop.engine) == Counter(shop.orders())
        assert set(attempted) >= shop.orders()
    finally:
        last.terminate()
        assert last.wait(60) == 0
        last.stdout.close()
