"""Every row of table 8.3: a transactional event inside a transaction, answered by token rows. Each test names its row."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon.events import CheckContext, Event, NoTransaction, PublishFailed
from halfmoon.testing.local import LocalCluster
from tests.events.outcomes.conftest import MakeShop
from tests.events.outcomes.network import CHECK, END_TRANSACTION, SEND, once
from tests.events.outcomes.shop import CHECKS, Shop
from tests.events.outcomes.test_plain_inside import order_unsure
from tests.events.outcomes.unsure import UnsureCommits
from tests.events.outcomes.victim import die
from tests.waiting import until

pytestmark = pytest.mark.slow


def member(shop: Shop) -> None:
    """Have a live process of the group that may be asked."""
    shop.events.start()


@pytest.mark.mission("002-14", "002-41", "002-43", "002-46", "002-50", "002-52")
def test_8_3_row_1_commits_and_the_decision_arrives(make_shop: MakeShop):
    shop = make_shop(check_after_s=60)
    event = shop.event()
    with shop.Session.begin() as session:
        published = shop.place(session, event)
        assert published.delivery == "prepared"
        assert published.result is not None
        assert published.result.msg_id == event.id
        assert shop.state(event) == "PREPARED"  # stored before the publish returned, seen by nobody
        assert shop.visible() == 0

    shop.went(event, True)
    assert shop.network.asked == 0
    assert shop.network.passed[END_TRANSACTION] == 1


@pytest.mark.mission("002-12", "002-51", "002-52", "002-53")
@pytest.mark.parametrize("commits", [True, False], ids=["row 2", "row 4"])
def test_8_3_rows_2_and_4_the_decision_is_lost(make_shop: MakeShop, commits: bool):
    shop = make_shop(check_after_s=2)
    shop.lose_second_phase()

    event = shop.order(stock=commits)  # nothing is raised

    shop.went(event, commits)
    assert shop.network.lost["request"] == 1
    assert shop.network.asked >= 1


@pytest.mark.mission("002-47", "002-52")
def test_8_3_row_3_rolls_back_and_the_decision_arrives(make_shop: MakeShop, caplog: pytest.LogCaptureFixture):
    shop = make_shop(check_after_s=60)
    with caplog.at_level(logging.WARNING, "halfmoon.events"):
        event = shop.order(stock=False)

    shop.went(event, False)
    assert shop.network.asked == 0
    assert any("rollback" in text and event.id in text for text in caplog.messages)


@pytest.mark.parametrize("step", ["after prepare", "after flush", "before commit"])
def test_8_3_row_5_the_process_dies_before_the_commit(shop: Shop, database_url: str, step: str):
    event_id = die(shop, database_url, step)
    assert shop.state_of(event_id) == "PREPARED"

    member(shop)

    until(lambda: shop.state_of(event_id) == "ROLLED_BACK", step)
    assert shop.orders() == set()
    shop.nothing_received()


def test_8_3_row_6_the_process_dies_after_the_commit(shop: Shop, database_url: str):
    event_id = die(shop, database_url, "after commit before decide")
    assert shop.state_of(event_id) == "PREPARED"

    member(shop)

    until(lambda: shop.seen()[event_id], event_id)
    assert shop.state_of(event_id) == "COMMITTED"
    assert shop.orders() == {event_id}
    assert shop.visible() == 1


@pytest.mark.mission("002-48")
@pytest.mark.parametrize("committed", [True, False])
def test_8_3_row_7_nobody_knows_whether_it_committed(make_shop: MakeShop, database_url: str, committed: bool):
    """Row 12 of the table is this with the article's code, which sends a rollback: the first case would lose its event."""
    unsure = UnsureCommits(database_url, committed=committed)
    shop = make_shop(engine=unsure.engine, check_after_s=60)

    event = order_unsure(shop, unsure, transactional=True)

    shop.went(event, committed)
    assert shop.network.asked == 0  # the row says it, long before the broker asks
    unsure.close()


@pytest.mark.mission("002-15", "002-44")
@pytest.mark.parametrize("fault", ["refused", "request lost"])
def test_8_3_row_8_the_first_phase_fails(make_shop: MakeShop, fault: str):
    shop = make_shop(tries_max=2, timeout_ms=900)
    shop.network.break_sends(fault)

    with pytest.raises(PublishFailed):
        shop.order()

    assert sum(shop.network.lost.values()) == 3
    assert shop.network.passed[SEND] == shop.network.passed[END_TRANSACTION] == 0
    assert shop.orders() == set()
    assert shop.admin.pending_transactions(group=shop.producers) == []
    shop.nothing_received()


@pytest.mark.mission("002-15", "002-44")
def test_8_3_row_9_time_out_but_stored(make_shop: MakeShop):
    shop = make_shop(check_after_s=2)
    shop.network.lose("answer", SEND)
    shop.lose_second_phase()  # so that one would be counted
    event = shop.event()

    with pytest.raises(PublishFailed), shop.Session.begin() as session:
        shop.place(session, event)

    shop.went(event, False)
    assert "request" not in shop.network.lost  # no hook was registered: nothing decided but a check
    assert shop.network.asked >= 1


def test_8_3_row_10_time_out_but_stored_and_the_repeat_is_merged(make_shop: MakeShop):
    shop = make_shop(tries_max=3, timeout_ms=4_000, check_after_s=60)
    shop.network.lose("answer", SEND, once())
    event = shop.event()

    with shop.Session.begin() as session:
        published = shop.place(session, event)
        assert published.attempts == 2
        assert shop.network.passed[SEND] == 2
        assert len(shop.pending(event)) == 1

    shop.went(event, True)


def placed_all_the_same(shop: Shop) -> Event:
    """Commit an order whose event could not be published: the answer to the first phase was lost."""
    shop.network.lose("answer", SEND)
    event = shop.event()
    with shop.Session.begin() as session:
        with pytest.raises(PublishFailed):
            shop.place(session, event)
        shop.network.heal()
    return event


def test_8_3_row_11_the_error_is_swallowed_and_the_transaction_commits(shop: Shop):
    """With a check that looks at the order, as the article has it: it is there, so the event is delivered."""

    def placed(event: Event, context: CheckContext) -> None:
        if event.id not in shop.orders():
            context.set_rollback_only()

    shop.events.check(shop.topic)(placed)
    event = placed_all_the_same(shop)

    shop.went(event, True)


def test_8_3_row_11_with_token_rows_a_publish_that_failed_stays_failed(shop: Shop):
    """No token row was written, for the first phase was not known to be stored: what the publish said is what happens.

    Differs from the table, whose check looks at data: the order is there and its event is not, as the caller was told.
    """
    event = placed_all_the_same(shop)

    shop.wait_for(event, "ROLLED_BACK")
    assert shop.orders() == {event.id}
    shop.nothing_received()


# ---------------------------------------------------------------- row 13: expired


@pytest.fixture
def strict_broker(tmp_path: Path) -> Iterator[LocalCluster]:
    """A broker that gives up after three checks."""
    with LocalCluster(tmp_path / "strict", {**CHECKS, "transactionCheckMax": 3}) as cluster:
        yield cluster


def halfmoon(shop: Shop, *words: str) -> str:
    """Run a command against the shop's broker and return what it shows."""
    command = [sys.executable, "-m", "halfmoon.cli.main", *words, "--nameserver", shop.cluster.nameserver]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.mission("002-53")
def test_8_3_row_13_nobody_answers_for_the_whole_check_budget(strict_broker: LocalCluster, database_url: str):
    shop = Shop(strict_broker, database_url, "expired")
    try:
        shop.lose_second_phase()
        shop.network.lose("request", CHECK)  # who is asked never hears it
        event = shop.order()
        given = until(lambda: [one for one in shop.admin.expired_transactions() if one.msg_id == event.id], "expired")
        assert (len(given), given[0].checks_sent) == (1, 3)
        assert shop.pending(event) == []
        shop.nothing_received()  # not until it is resumed

        shop.network.heal()
        listed = json.loads(halfmoon(shop, "tx", "expired", "--json"))
        halfmoon(shop, "tx", "resume", listed[0]["offset_msg_id"])

        shop.received(event)
        assert shop.orders() == {event.id}
    finally:
        shop.close()


def test_8_3_row_13_a_group_without_a_live_member_costs_no_checks(strict_broker: LocalCluster, database_url: str):
    """Differs from the table: a check that nobody could be sent does not count, so a group that comes back is asked."""
    shop = Shop(strict_broker, database_url, "nobody", lazy=True)
    try:
        event_id = die(shop, database_url, "after commit before decide")
        until(lambda: shop.admin.transaction(event_id).producers == 0, "gone")
        until_rounds(shop, rounds=6)
        assert shop.state_of(event_id) == "PREPARED"
        assert shop.admin.expired_transactions() == []

        member(shop)

        until(lambda: shop.seen()[event_id], event_id)
    finally:
        shop.close()


def until_rounds(shop: Shop, rounds: int) -> None:
    """Wait until the broker has looked so often at what is due."""
    begun = counter(shop, "rounds")
    until(lambda: counter(shop, "rounds") >= begun + rounds, f"{rounds} rounds")


def counter(shop: Shop, name: str) -> int:
    (stats,) = shop.admin.transaction_stats()
    return stats.counters[name]


def test_8_3_row_14_no_transaction_is_active(shop: Shop):
    event = shop.event()
    with pytest.raises(NoTransaction, match="transactional=False"):
        shop.events.publish(event)
    assert shop.admin.pending_transactions(group=shop.producers) == []

    assert shop.events.publish(event, transactional=False).delivery == "sent"
    assert shop.admin.pending_transactions(group=shop.producers) == []
    shop.received(event)
