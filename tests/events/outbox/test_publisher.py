"""`Publisher(mode="outbox")` with real databases and a real broker: the same call as ever, and it works with the broker down."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest
import sqlalchemy
from sqlalchemy.orm import sessionmaker

from halfmoon import Admin
from halfmoon.errors import UsageError
from halfmoon.events.errors import PublishFailed
from halfmoon.events.outbox import status as outbox_status
from halfmoon.events.outbox.relay import RelaySettings
from halfmoon.events.publishing.publisher import Publisher
from halfmoon.events.testing import MemoryBus
from halfmoon.testing.local import LocalCluster
from tests.events.outbox.reader import Reader
from tests.events.outbox.shops import T, shop
from tests.events.outcomes.forked import Forked
from tests.waiting import until


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["engine", "async engine", "driver"])
def test_events_of_committed_transactions_are_consumed_and_others_never(database_url, cluster, topic, kind):
    with closing(shop(database_url, kind, nameserver=cluster.nameserver)) as mine, Reader(cluster, topic) as inbox:
        told = mine.sell(topic=topic, transactional=True, headers={"who": "Ada"}, key="o-42")
        mine.sell(topic=topic, transactional=True, commits=False)
        last = mine.sell(2, topic=topic)
        until(lambda: len(inbox.ids) >= 3)
        until(lambda: outbox_status.backlog(mine.provider).backlog == 0)

    assert sorted(inbox.ids) == sorted([*told, *last])
    paid = next(one for one in inbox.messages if one.msg_id == told[0])
    assert (paid.tag, paid.keys, paid.properties["who"]) == ("EC_PAID", (told[0], "o-42"), "Ada")


@pytest.mark.slow
def test_an_event_for_a_topic_that_may_not_be_written_to_is_parked_at_once_and_sent_when_asked_for(sqlite_url, cluster):
    topic = "TP_READ_ONLY"
    with (
        Admin(nameserver=cluster.nameserver) as admin,
        closing(shop(sqlite_url, "engine", nameserver=cluster.nameserver)) as mine,
    ):
        admin.create_topic(topic, queue_count=1, perm=4)
        told = mine.sell(topic=topic)
        [parked] = until(lambda: outbox_status.entries(mine.provider, state="failed"), within_s=10)
        assert (parked.event_id, parked.attempts) == (told[0], 1)
        assert "TP_READ_ONLY may not be written to" in parked.error
        direct = Publisher("P_direct", cluster.nameserver, provider=mine.provider)
        with mine.begin(), pytest.raises(PublishFailed, match="may not be written to"):
            direct.publish(topic, "EC_PAID", 3, transactional=True)
        admin.create_topic(topic, perm=6)
        outbox_status.retry(mine.provider)
        until(lambda: outbox_status.entries(mine.provider) == [])


@pytest.mark.slow
def test_publishing_works_without_any_broker_and_the_events_follow(database_url, tmp_path):
    cluster = LocalCluster(tmp_path / "store")
    with cluster:
        pass  # its ports are known now, and nobody listens there
    settings = RelaySettings(poll_ms=100, timeout_ms=500, claim_ms=5_000)
    with closing(shop(database_url, "engine", nameserver=cluster.nameserver, relay=settings)) as mine:
        begun = time.monotonic()
        told = [event_id for _ in range(20) for event_id in mine.sell(transactional=True)]
        assert time.monotonic() - begun < 20, "nobody waited for the broker"
        until(lambda: mine.publisher._relay.figures().closed)
        assert outbox_status.backlog(mine.provider).backlog == 20
        with cluster, Reader(cluster, T) as inbox:
            until(lambda: set(inbox.ids) == set(told))
            until(lambda: outbox_status.backlog(mine.provider).backlog == 0)


@pytest.mark.slow
def test_the_relay_of_the_process_is_nudged_by_the_commit(database_url, cluster, topic):
    slow = RelaySettings(poll_ms=3_600_000)
    with closing(shop(database_url, "engine", nameserver=cluster.nameserver, relay=slow)) as mine, Reader(cluster, topic) as inbox:
        for _ in range(5):
            [told] = mine.sell(topic=topic)
            until(lambda event_id=told: event_id in inbox.ids)


def test_without_a_relay_here_rows_wait_for_one_elsewhere(sqlite_url):
    before = threading.enumerate()
    with closing(shop(sqlite_url, "engine")) as mine:
        told = mine.sell(transactional=True)  # needs no function that answers checks
        assert "halfmoon-outbox-relay" not in {one.name for one in threading.enumerate() if one not in before}
        assert [one.event_id for one in outbox_status.entries(mine.provider)] == told


@pytest.mark.parametrize("relay", [None, 1, "yes", {"poll_ms": 5}])
def test_a_relay_setting_that_is_none_is_refused(relay):
    with pytest.raises(UsageError, match="relay="):
        Publisher(
            "P_x", transport=MemoryBus(), session=sessionmaker(sqlalchemy.create_engine("sqlite://")), mode="outbox", relay=relay
        )


@pytest.mark.slow
def test_a_delayed_event_keeps_its_time_whichever_process_is_killed_meanwhile(database_url, tmp_path):
    def relay():
        environment = {"HALFMOON_DATABASE": database_url, "NAMESRV_ADDR": cluster.nameserver}
        return Forked("halfmoon.cli.main", ["outbox", "relay", "--poll", "20ms", "--claim", "8s"], environment)

    with LocalCluster(tmp_path / "store") as cluster, closing(shop(database_url, "engine")) as mine:
        with Admin(nameserver=cluster.nameserver) as admin:
            admin.create_topic("TP_LATER", queue_count=1)
        cluster.kill()
        due_ms = time.time_ns() // 1_000_000 + 15_000
        [later] = mine.sell(topic="TP_LATER", deliver_at=due_ms, key="o-1")
        [now] = mine.sell(topic="TP_LATER", key="o-1")
        relays = [relay()]
        try:
            time.sleep(1)
            relays[0].kill()
            cluster.start()
            relays.append(relay())
            until(lambda: outbox_status.backlog(mine.provider).backlog == 0, "an empty outbox")
            relays[1].kill()
            cluster.kill()
            cluster.start()
            with Reader(cluster, "TP_LATER") as inbox:
                until(lambda: set(inbox.ids) == {later, now})
        finally:
            for one in relays:
                one.kill()
                one.communicate()

    assert all(message.store_ms >= due_ms for message in inbox.messages if message.msg_id == later)
