"""A broker or a database that is killed in the middle: the event still goes the way of its transaction.

Beside the tables: their rows lose messages and processes of publishers; here what both sides rely on goes away and comes back.
"""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from halfmoon.testing.local import LocalCluster
from tests.events.outcomes.shop import Shop
from tests.events.real_databases import Postgres
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.mark.mission("002-51", "002-52")
@pytest.mark.parametrize("stock", [True, False])
def test_a_broker_killed_between_the_phases_asks_when_it_is_back(shop: Shop, stock: bool):
    event = shop.event()
    with shop.Session() as session:
        shop.place(session, event)
        shop.cluster.kill()
        try:
            session.commit() if stock else session.rollback()  # nothing is raised: the decision goes nowhere
        finally:
            shop.cluster.start()

    shop.went(event, stock)


def test_a_broker_killed_before_the_first_phase_fails_the_publish_and_the_order(shop: Shop):
    shop.events.start()
    event = shop.event()
    shop.cluster.kill()
    try:
        with pytest.raises(Exception, match=event.id), shop.Session.begin() as session:
            shop.place(session, event)
    finally:
        shop.cluster.start()

    assert shop.orders() == set()
    shop.nothing_received()


def test_an_event_is_undecided_while_the_database_is_down_and_rolled_back_once_it_is_up(
    broker: LocalCluster, postgres_server: Postgres, postgres_url: str
):
    shop = Shop(broker, postgres_url, "crash", engine=create_engine(postgres_url, pool_pre_ping=True), check_after_s=1)
    try:
        event = shop.event()
        with pytest.raises(OperationalError), shop.Session() as session:  # noqa: PT012 (the last statement raises)
            shop.place(session, event)
            postgres_server.kill()
            session.commit()
        decider = shop.events._decider
        assert decider is not None
        until(lambda: any(question.tries >= 3 for question in list(decider._pending)), "asked in vain")
        assert shop.state(event) == "PREPARED"
        postgres_server.start()

        shop.went(event, False)
    finally:
        postgres_server.stop()
        postgres_server.start()
        shop.close()
