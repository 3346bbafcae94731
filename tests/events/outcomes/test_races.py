"""A check that comes while the transaction is still open, answered by another process of the group: it never guesses.

What table 8.3 leaves between its columns: the broker asks before the token row is written, and before it is committed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon.events import Publisher, PublishFailed
from halfmoon.events.publishing.client_transport import ClientTransport
from halfmoon.events.publishing.transport import Prepared
from halfmoon.model import Message
from halfmoon.testing.local import LocalCluster
from tests.events.outcomes.network import CHECK
from tests.events.outcomes.shop import PROPORTIONS, Order, Shop
from tests.waiting import until

pytestmark = pytest.mark.slow


class Held(ClientTransport):
    """Its first phase is stored, and returns only when the test lets it."""

    def __init__(self, group: str, nameserver: str) -> None:
        super().__init__(group, nameserver)
        self.stored, self.go_on = threading.Event(), threading.Event()

    def prepare(self, message: Message, *, attempt: int, timeout_ms: int, check_after_s: int | None) -> Prepared:
        found = super().prepare(message, attempt=attempt, timeout_ms=timeout_ms, check_after_s=check_after_s)
        self.stored.set()
        assert self.go_on.wait(60)
        return found


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Iterator[Shop]:
    """A shop at a broker that asks and asks; its own publisher is never reached by a check."""
    with LocalCluster(tmp_path / "store", PROPORTIONS) as cluster:
        found = Shop(cluster, database_url, "race")
        found.network.lose("request", CHECK)
        yield found
        found.close()


@pytest.fixture
def other(shop: Shop) -> Iterator[Publisher]:
    """Another member of the group, which checks do reach."""
    with Publisher(shop.producers, shop.cluster.nameserver, session=shop.Session) as found:
        yield found


@pytest.mark.mission("002-11", "002-15", "002-52")
def test_a_check_before_the_token_row_wins_and_the_transaction_cannot_commit(shop: Shop, other: Publisher):
    held = Held(shop.producers, shop.network.nameserver)
    events = Publisher(shop.producers, session=shop.Session, transport=held)
    event = events.event(shop.topic, "EC_PAID", {}, transactional=True)
    raised: list[Exception] = []

    def place() -> None:
        try:
            with shop.Session.begin() as session:
                events.publish(event)
                session.add(Order(number="o-1", event_id=event.id))
        except PublishFailed as exc:
            raised.append(exc)

    service = threading.Thread(target=place)
    service.start()
    assert held.stored.wait(60)
    wins = shop.engine.dialect.name != "sqlite"  # there the transaction has the only lock for writing by now, and goes first
    if wins:
        shop.wait_for(event, "ROLLED_BACK")  # the other member found no row, and wrote the tombstone
    held.go_on.set()
    service.join(60)
    events.close()

    if not wins:
        assert raised == []
        shop.received(event)
        return
    assert [type(one) for one in raised] == [PublishFailed]
    assert "a broker's check settled it" in str(raised[0])
    assert shop.orders() == set()
    shop.nothing_received()


@pytest.mark.mission("002-11", "002-52")
def test_a_check_while_the_row_is_not_committed_stays_undecided(shop: Shop, other: Publisher, caplog: pytest.LogCaptureFixture):
    event = shop.event()
    with caplog.at_level(logging.INFO, "halfmoon.events"), shop.Session.begin() as session:
        shop.place(session, event)
        until(lambda: [text for text in caplog.messages if "undecided, its transaction may be open" in text], "asked")
        assert shop.state(event) == "PREPARED"
        shop.lose_second_phase()

    shop.wait_for(event, "COMMITTED")  # by a check, again of the other member
    assert shop.orders() == {event.id}
    shop.received(event)
