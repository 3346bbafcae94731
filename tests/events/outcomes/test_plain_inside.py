"""Every row of table 8.2: a plain event inside a transaction; and that what these rows lose, the outbox does not. Each test names
its row."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy.exc import OperationalError

from halfmoon.events import Event
from tests.events.outcomes.conftest import MakeShop
from tests.events.outcomes.network import SEND
from tests.events.outcomes.shop import Shop
from tests.events.outcomes.unsure import UnsureCommits
from tests.events.outcomes.victim import die
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.mark.mission("002-36")
def test_8_2_row_1_the_transaction_rolls_back(shop: Shop):
    shop.order(transactional=False, stock=False)

    assert shop.network.passed[SEND] == 0
    assert shop.orders() == set()
    shop.nothing_received()


@pytest.mark.mission("002-29", "002-30", "002-37")
def test_8_2_row_2_commits_and_the_send_is_ok(shop: Shop):
    event = shop.event(transactional=False)
    with shop.Session.begin() as session:
        published = shop.place(session, event)
        assert published.delivery == "deferred"
        assert shop.network.passed[SEND] == 0  # success returned, nothing on the network

    assert shop.orders() == {event.id}
    shop.received(event)


@pytest.mark.mission("002-38", "002-39", "002-40")
@pytest.mark.parametrize("fault", ["refused", "request lost", "answer lost"])
def test_8_2_rows_3_to_5_commits_and_the_send_fails_or_times_out(shop: Shop, fault: str, caplog: pytest.LogCaptureFixture):
    shop.network.break_sends(fault)

    with caplog.at_level(logging.ERROR, "halfmoon.events"):
        event = shop.order(transactional=False)  # nothing is raised

    assert shop.network.lost.total() == 1
    assert any("event lost after commit" in text and event.id in text for text in caplog.messages)
    assert shop.orders() == {event.id}
    if fault == "answer lost":
        shop.received(event)
    else:
        shop.nothing_received()  # the documented weakness of plain events


def test_8_2_row_6_the_process_dies_between_commit_and_send(shop: Shop, database_url: str):
    event_id = die(shop, database_url, "before send", transactional=False)

    assert shop.orders() == {event_id}
    shop.nothing_received()


@pytest.mark.parametrize("committed", [True, False])
def test_8_2_row_7_nobody_knows_whether_it_committed(make_shop: MakeShop, database_url: str, committed: bool):
    unsure = UnsureCommits(database_url, committed=committed)
    shop = make_shop(engine=unsure.engine)
    event = order_unsure(shop, unsure, transactional=False)

    assert shop.network.passed[SEND] == 0
    assert shop.orders() == ({event.id} if committed else set())
    shop.nothing_received()
    unsure.close()


def order_unsure(shop: Shop, unsure: UnsureCommits, *, transactional: bool) -> Event:
    """Place an order whose commit is answered by an error."""
    event = shop.event(transactional=transactional)
    with pytest.raises(OperationalError), shop.Session() as session:  # noqa: PT012 (the last statement raises)
        unsure.arm(event.id)
        shop.place(session, event)
        session.commit()
    return event


# ---------------------------------------------------------------- the same through the outbox: nothing is lost


@pytest.mark.parametrize(
    ("fault", "transactional"), [("refused", True), ("request lost", False), ("answer lost", False), ("broker gone", True)]
)
def test_8_2_rows_3_to_5_lose_nothing_through_the_outbox(make_shop: MakeShop, fault: str, transactional: bool):
    shop = make_shop(mode="outbox")
    if fault == "broker gone":
        shop.cluster.stop()
    else:
        shop.network.break_sends(fault)
    event = shop.order(transactional=transactional)
    if fault == "broker gone":
        shop.cluster.start()
    else:
        until(lambda: shop.network.lost.total(), "the relay tries")
    shop.network.heal()

    until(lambda: shop.seen()[event.id], f"{event}")

    assert shop.orders() == set(shop.seen())


def test_8_2_row_6_loses_nothing_through_the_outbox(make_shop: MakeShop, database_url: str):
    shop = make_shop(mode="outbox", relay=False)
    event_id = die(shop, database_url, "before post", transactional=False, mode="outbox")
    assert shop.orders() == {event_id}
    assert shop.visible() == 0

    another = shop.publisher(mode="outbox")  # a process of the service that lives
    another.start()
    until(lambda: shop.seen()[event_id], event_id)
    another.close()

    assert set(shop.seen()) == {event_id}


@pytest.mark.parametrize("committed", [True, False])
def test_8_2_rows_1_and_7_lose_nothing_through_the_outbox(make_shop: MakeShop, database_url: str, committed: bool):
    unsure = UnsureCommits(database_url, committed=committed)
    shop = make_shop(engine=unsure.engine, mode="outbox")
    event = order_unsure(shop, unsure, transactional=False)
    shop.order(transactional=False, stock=False)  # row 1: rolled back, and its row with it
    last = shop.order(transactional=False)  # its row comes after the other's, and is sent after it

    until(lambda: shop.seen()[last.id], f"{last}")
    if committed:
        until(lambda: shop.seen()[event.id], f"{event}")

    assert set(shop.seen()) == shop.orders() == ({event.id, last.id} if committed else {last.id})
    unsure.close()
