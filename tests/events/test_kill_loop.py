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
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url

from halfmoon.testing.local import LocalCluster
from tests.events.outcomes.consuming_victim import effects, make_effects
from tests.events.outcomes.forked import Forked
from tests.events.outcomes.services import ENDLESS, Restarted, consuming, options, published
from tests.events.outcomes.shop import PROPORTIONS, Shop
from tests.events.outcomes.victim import DIE_AT, DIE_ON, OUTBOX_STEPS, STEPS, start
from tests.events.server import Server
from tests.waiting import until

KILL_S = float(os.environ.get("HALFMOON_KILL_S", "0"))
"""For how long everybody is killed at random times, at least twice each; 600 for a long run, ``-k whoever``."""

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
        given = options(shop, "two-phase", orders=2, seed=number)  # no third one, behind which the second would be decided
        process = start(shop.network.nameserver, database_url, [*given, "--rollbacks", "0"], {DIE_AT: step, DIE_ON: "2"})
        output, _ = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, f"{step}: {output}"
        attempted += published(output)

    agree(shop, attempted)

    before_commit = STEPS.index("before commit") + 1
    # Decisions are taken beside the orders, so that a process may die at one while its second order is still open.
    assert len(STEPS) <= len(shop.orders()) <= 2 * len(STEPS) - before_commit
    assert len(STEPS) < len(attempted) <= 2 * len(STEPS) - 1  # one died before it had an event, as others may


# ---------------------------------------------------------------- whoever is killed: services, the broker, the database


@pytest.mark.mission("002-51", "002-52", "002-53")
def test_nothing_is_lost_invented_or_doubled_whoever_is_killed(
    broker: LocalCluster, database_url: str, request: pytest.FixtureRequest
):
    name = make_url(database_url).get_backend_name()
    server = {"postgresql": "postgres_server", "mysql": "mariadb_server"}.get(name)
    database = request.getfixturevalue(server) if server else None
    shop = Shop(broker, database_url, f"kill_{next(_numbers)}", engine=create_engine(database_url, pool_pre_ping=True))
    make_effects(shop.engine)
    shop.events.start()
    seeds, dice = itertools.count(), random.Random(9)

    def publisher() -> Forked:
        seed = next(seeds)
        given = [*options(shop, "two-phase", orders=ENDLESS, seed=seed), "--events", str(1 + seed % 3)]
        return start(shop.network.nameserver, database_url, given, {})

    publishers = [Restarted(publisher) for _ in range(2)]
    consumer = Restarted(lambda: consuming(shop, database_url, ready=False))
    victims = [
        *[one.kill for one in (*publishers, consumer)],
        lambda: _again(broker),
        *([lambda: _again(database)] if server else []),
    ]
    end = time.monotonic() + KILL_S
    try:
        for _ in itertools.takewhile(lambda turn: turn < 2 or time.monotonic() < end, itertools.count()):
            for kill in dice.sample(victims, len(victims)):
                time.sleep(dice.uniform(0.1, 0.7))
                kill()
        time.sleep(1)
        for one in publishers:
            one.end()
        until(lambda: not shop.admin.pending_transactions(group=shop.producers), "all is decided")
        rows = shop.orders()
        until(lambda: set(effects(shop.engine)) >= rows, f"{len(rows)} orders have their effects")
        assert effects(shop.engine) == Counter(rows)
        assert shop.visible() == len(rows)
        assert {event for one in publishers for event in published(one.output)} >= rows
        assert len(rows) > len(victims)
    finally:
        for one in (*publishers, consumer):
            one.end()
        shop.close()


def _again(server: LocalCluster | Server) -> None:
    """Kill a server, and start it again on its port and files."""
    server.kill()
    server.start()


# ---------------------------------------------------------------- through the outbox: at least once, and nothing else


@pytest.mark.parametrize("shop", ["outbox"], indirect=True)
def test_rows_and_events_of_the_outbox_agree_after_a_kill_at_each_step(shop: Shop, database_url: str):
    attempted = []
    for number, step in enumerate(OUTBOX_STEPS):
        given = [*options(shop, "outbox", orders=3, seed=number), "--rollbacks", "0", "--linger-s", "30"]
        process = start(shop.network.nameserver, database_url, given, {DIE_AT: step, DIE_ON: "3" if "post" in step else "2"})
        output, _ = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, f"{step}: {output}"
        attempted += published(output)

    shop.events.start()
    rows = shop.orders()
    until(lambda: set(shop.seen()) >= rows, f"{len(rows)} events")
    assert set(shop.seen()) == rows  # an event may have come again when its relay was killed
    assert len(OUTBOX_STEPS) < len(rows) <= len(attempted)


# ---------------------------------------------------------------- consumers, too: effects exactly once


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
