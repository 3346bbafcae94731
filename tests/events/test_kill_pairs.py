"""Order services on PostgreSQL with a pair of brokers whose master is killed and switched: rows and events agree in the end, by id.

The lease of the pair lies in the same PostgreSQL. Publishers, consumer, brokers and name server are processes of their own. What a
master sent to its follower just before it is killed is lost.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon.errors import HalfmoonError
from halfmoon.events import Publisher
from tests.events.outcomes.consuming_victim import effects, make_effects
from tests.events.outcomes.forked import Forked
from tests.events.outcomes.services import ENDLESS, Restarted, consuming, options, published
from tests.events.outcomes.shop import CODE, PROPORTIONS, Order, Shop
from tests.events.outcomes.victim import die, start
from tests.events.real_databases import Postgres, plain
from tests.interop.dropping_proxy import SETTINGS, DroppingProxy, complete, lose_master
from tests.interop.pairs import Pair
from tests.waiting import until

pytestmark = pytest.mark.slow
TURNS = 6
"""Changes of the master under load: every second one is a kill, the others are switches."""


@pytest.fixture
def pair(request: pytest.FixtureRequest, postgres_server: Postgres, tmp_path: Path) -> Iterator[Pair]:
    """A pair of brokers with the proportions of the defaults, which are not started. Its parameter are other settings."""
    settings = {**PROPORTIONS, **SETTINGS, **getattr(request, "param", {})}
    found = Pair(tmp_path / "pair", plain(postgres_server.create()), settings=settings)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def proxy(pair: Pair) -> Iterator[DroppingProxy]:
    """The link between the members, which are a complete pair."""
    with complete(pair, random.Random(3)) as found:
        yield found


@pytest.mark.parametrize("pair", [{"transactionTimeOut": 20_000}], ids=["late checks"], indirect=True)
@pytest.mark.parametrize("change", ["kill -9", "switch"])
def test_half_messages_in_doubt_are_decided_by_checks_of_the_new_master(
    pair: Pair, proxy: DroppingProxy, postgres_url: str, change: str
):
    shop = Shop(pair, postgres_url, "doubt")
    try:
        committed = die(shop, postgres_url, "after commit before decide")
        rolled_back = die(shop, postgres_url, "before commit")
        if change == "switch":
            pair.switch()
        else:
            lose_master(pair, proxy)
        until(lambda: _pending(shop) == {committed, rolled_back}, "the new master to show what is in doubt")
        assert shop.network.asked == 0, "the machine is too slow: the first master asked"

        shop.events.start()
        until(lambda: not _pending(shop), "all is decided")

        assert shop.network.asked >= 2
        assert shop.orders() == {committed}
        until(lambda: shop.seen(), "the event")
        assert shop.seen() == {committed: 1}
        assert shop.visible() == 1
    finally:
        shop.close()


RARE_ROUNDS = {"transactionTimeOut": 2_000, "transactionCheckInterval": 60_000}
NO_ROUNDS = {"transactionTimeOut": 60_000, "transactionCheckInterval": 60_000}
SOON_S = 40
"""Within this a transaction is decided after a takeover; the rounds of checks are further apart."""


@pytest.mark.parametrize("pair", [RARE_ROUNDS], ids=["rare rounds"], indirect=True)
def test_a_new_master_asks_soon_about_what_the_lost_one_left_though_its_rounds_are_rare(
    pair: Pair, proxy: DroppingProxy, postgres_url: str
):
    shop = Shop(pair, postgres_url, "soon")
    try:
        committed = die(shop, postgres_url, "after commit before decide")
        lose_master(pair, proxy)
        shop.events.start()
        until(lambda: not _pending(shop), "the decision", within_s=SOON_S)
        until(lambda: shop.seen() == {committed: 1}, "the event")
    finally:
        shop.close()


@pytest.mark.parametrize("pair", [NO_ROUNDS], ids=["no rounds"], indirect=True)
def test_a_commit_while_there_is_no_master_reaches_the_next_one_without_a_check(
    pair: Pair, proxy: DroppingProxy, postgres_url: str
):
    shop = Shop(pair, postgres_url, "between")
    events = Publisher(shop.producers, pair.nameserver, session=shop.Session, topics=[shop.topic])
    try:
        with shop.Session.begin() as session:
            event = events.event(shop.topic, CODE, {"paid": 42})
            session.add(Order(number=f"o-{event.id}", event_id=event.id))
            session.flush()
            events.publish(event)
            killed = pair.kill_master()
        pair.wait_taken_over(killed)
        until(lambda: not _pending(shop), "the decision", within_s=SOON_S)
        until(lambda: shop.seen() == {event.id: 1}, "the event")
    finally:
        events.close()
        shop.close()


@pytest.mark.parametrize("mode", ["two-phase", "outbox"])
def test_rows_and_events_agree_though_masters_and_services_are_killed(
    pair: Pair, proxy: DroppingProxy, postgres_url: str, mode: str
):
    shop = Shop(pair, postgres_url, "takeovers", mode=mode)
    make_effects(shop.engine)
    seeds, dice = itertools.count(), random.Random(17)

    def publisher() -> Forked:
        seed = next(seeds)
        given = [*options(shop, mode, orders=ENDLESS, seed=seed), "--events", str(1 + seed % 3)]
        return start(shop.network.nameserver, postgres_url, given, {})

    publishers = [Restarted(publisher) for _ in range(2)]
    services = [*publishers, Restarted(lambda: consuming(shop, postgres_url, ready=False))]
    without_events_s = []
    try:
        _goes_on(shop)
        for turn in range(TURNS):
            began = time.monotonic()
            _change_master(pair, proxy, dice.sample(services, 2), dice, kill=turn % 2 == 0)
            _goes_on(shop)
            without_events_s.append(round(time.monotonic() - began, 1))
            pair.wait_complete()
        for one in publishers:
            one.end()
        shop.events.start()  # the member of the group, or the relay, that stays
        until(lambda: not _pending(shop), "all is decided")
        rows = shop.orders()
        until(lambda: set(effects(shop.engine)) >= rows, f"{len(rows)} orders have their effects")
        assert effects(shop.engine) == Counter(rows)
        attempted = {event for one in publishers for event in published(one.output)}
        assert attempted > rows
        print(
            f"{mode}: {len(rows)} rows of {len(attempted)} orders, {shop.visible()} messages; until 20 more: {without_events_s} s"
        )
        if mode == "two-phase":
            assert shop.visible() == len(rows)
        else:
            assert shop.visible() >= len(rows)  # a relay that was killed, or got no answer, sends again
    finally:
        for one in services:
            one.end()
        shop.close()


def _pending(shop: Shop) -> set[str]:
    """Return the ids of the events whose half messages are not decided."""
    return {one.msg_id for one in shop.admin.pending_transactions(group=shop.producers)}


def _change_master(pair: Pair, proxy: DroppingProxy, services: list[Restarted], dice: random.Random, *, kill: bool) -> None:
    """Kill or switch the master of a pair, with services killed meanwhile."""

    def kill_services() -> None:
        for service in services:
            time.sleep(dice.uniform(0, 1))
            service.kill()

    killing = threading.Thread(target=kill_services)
    killing.start()
    if kill:
        pair.start(lose_master(pair, proxy))
    else:
        pair.switch()
    killing.join()


def _goes_on(shop: Shop) -> None:
    """Wait until 20 more events are there for consumers."""

    def visible() -> int:
        try:
            return shop.visible()
        except HalfmoonError:  # the way to the new master is not known yet
            return 0

    known = until(visible, "events")
    until(lambda: visible() >= known + 20, "more events")
