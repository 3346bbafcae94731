"""Relays killed with -9 in the middle of a batch, again and again: every committed event is sent, and no other."""

from __future__ import annotations

import random
import threading
import time

import pytest
import sqlalchemy
from sqlalchemy.orm import sessionmaker

from halfmoon.events.publishing.publisher import Publisher
from halfmoon.testing.local import LocalCluster
from tests.events.outbox.outboxes import Outbox
from tests.events.outbox.reader import Reader
from tests.events.outcomes.forked import Forked
from tests.waiting import until

pytestmark = pytest.mark.slow

KILLS = 4
TRIES = 60
WRITERS = 3


class Rejected(Exception):
    """The shop changes its mind: the transaction is rolled back."""


@pytest.fixture
def outbox(database_url):
    found = Outbox(database_url)
    found.tell("CREATE TABLE orders (id VARCHAR(40) PRIMARY KEY, event_id VARCHAR(64))")
    yield found
    found.close()


class Shop:
    """Sells from several threads until it is told to stop; some sales are rolled back."""

    def __init__(self, outbox, cluster):
        engine = sqlalchemy.create_engine(outbox.url)
        self.session = sessionmaker(engine)
        self.events = Publisher("P_shop", cluster.nameserver, session=self.session, mode="outbox", relay=False)
        self.refused, self.closing = set(), threading.Event()
        self.threads = [threading.Thread(target=self._work, args=(at,)) for at in range(WRITERS)]

    def _work(self, number):
        chance, count = random.Random(number), 0
        while not self.closing.wait(0.01):
            count += 1
            order, key = f"{number}-{count}", f"k{count % 3}" if count % 50 == 0 else ""
            event = self.events.event("TP_SHOP", "EC_SOLD", {"order": order}, key=key, transactional=True)
            try:
                with self.session.begin() as session:
                    place = sqlalchemy.text("INSERT INTO orders VALUES (:id, :event_id)")
                    session.execute(place, {"id": order, "event_id": event.id})
                    self.events.publish(event)
                    if chance.random() < 0.2:
                        raise Rejected
            except Rejected:
                self.refused.add(event.id)

    def __enter__(self):
        self.events.start()
        for each in self.threads:
            each.start()
        return self

    def stop(self):
        self.closing.set()
        for each in self.threads:
            each.join(60)

    def __exit__(self, *error):
        self.stop()
        self.events.close()


def relay_process(outbox, cluster):
    environment = {"HALFMOON_DATABASE": outbox.url, "NAMESRV_ADDR": cluster.nameserver}
    return Forked(
        "halfmoon.cli.main",
        ["outbox", "relay", "--poll", "20ms", "--batch", "20", "--claim", "8s", "--keep-sent", "1d"],
        environment,
    )


def test_events_of_committed_sales_are_sent_and_of_no_others_however_relays_die(outbox, tmp_path):
    chance = random.Random(9)
    with LocalCluster(tmp_path / "store") as cluster:
        relays, stranded = [], 0
        with Reader(cluster, "TP_SHOP") as inbox, Shop(outbox, cluster) as shop:
            try:
                for at in range(TRIES):
                    if at >= KILLS and stranded:
                        break
                    relays.append(relay_process(outbox, cluster))
                    before = len(inbox.ids)
                    until(
                        lambda before=before: len(inbox.ids) > before or relays[-1].poll() is not None,
                        "an event that the relay sends",
                    )
                    assert relays[-1].poll() is None, "the relay ended by itself"
                    time.sleep(chance.uniform(0, 0.3))
                    relays[-1].kill()
                    relays[-1].wait()
                    stranded += outbox.ask("SELECT COUNT(*) FROM halfmoon_outbox WHERE claimed_until_ms > 0")[0][0]
                    if at == KILLS // 2:
                        cluster.kill()
                        time.sleep(0.5)
                        cluster.start()
                until(lambda: outbox.ask("SELECT COUNT(*) FROM orders")[0][0] > 100)
                shop.stop()
                relays += [relay_process(outbox, cluster), relay_process(outbox, cluster)]
                until(lambda: outbox.ids == [], "an empty outbox", within_s=120)
                sold = {one for (one,) in outbox.ask("SELECT event_id FROM orders")}
                until(lambda: sold <= set(inbox.ids), "every event that was sold", within_s=120)
            finally:
                for one in relays:
                    one.kill()
                    one.communicate()

    assert stranded, "no kill hit a relay with rows in hand: nothing was tried"
    assert len(sold) > 100
    assert shop.refused
    assert outbox.ids == []
    assert set(inbox.ids) == sold
    assert set(outbox.kept) == sold, "whatever was sent is kept"
    assert not set(inbox.ids) & shop.refused
