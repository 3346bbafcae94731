"""The form of a message beside a broker with accounts: what the console's account may not do is refused in words, and not sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halfmoon import Admin
from halfmoon.testing.local import LocalCluster
from halfmoon.wire.bodies import BrokerData
from tests.broker.access.rule_files import write
from tests.console.conftest import Site, site_of

RULES = """
accounts:
- {accessKey: operator, secretKey: the secret 2, admin: true}
- {accessKey: reading-account, secretKey: the secret 3, topicPerms: [orders=SUB], defaultTopicPerm: DENY}
"""
OPERATOR = {"access_key": "operator", "secret_key": "the secret 2"}
READER = {"access_key": "reading-account", "secret_key": "the secret 3"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    data = tmp_path_factory.mktemp("acl") / "store"
    write(data, RULES)
    with LocalCluster(data, {"aclEnable": "true"}) as running:
        with Admin(nameserver=running.nameserver, **OPERATOR) as admin:
            admin.create_topic("orders", queue_count=1)
        yield running


def count_of(cluster: LocalCluster) -> int:
    with Admin(nameserver=cluster.nameserver, **OPERATOR) as admin:
        return sum(ends.max_offset for ends in admin.topic_stats("orders").values())


async def sent(site: Site) -> Any:
    return await site.post("/messages/send", topic="orders", body="x")


async def test_a_console_as_serve_starts_it_sends_to_its_own_broker_with_its_account(cluster: LocalCluster, tmp_path: Path):
    signed, before = f"{cluster.nameserver};{cluster.broker}", count_of(cluster)
    async with site_of(tmp_path, nameserver=cluster.nameserver, signed_addresses=signed, **OPERATOR) as site:
        assert site.said(await sent(site)).startswith("The message is stored in orders: ")
    assert count_of(cluster) == before + 1


async def test_an_account_that_may_not_publish_is_refused_in_words_and_in_the_audit(cluster: LocalCluster, tmp_path: Path):
    before = count_of(cluster)
    async with site_of(tmp_path, nameserver=cluster.nameserver, **READER) as site:
        answer = await sent(site)
        said, entry = site.said(answer), site.services.audit.read(1)[0]

    assert answer.status_code == 409
    assert f"{cluster.broker} refused access: " in said
    assert "orders" in said
    assert (entry.action, entry.outcome.partition(":")[0]) == ("messages send", "failed")
    assert count_of(cluster) == before


async def test_a_topic_that_is_also_at_another_broker_gets_nothing_signed_by_the_console(cluster: LocalCluster, tmp_path: Path):
    signed, before = f"{cluster.nameserver};{cluster.broker}", count_of(cluster)
    async with site_of(tmp_path, nameserver=cluster.nameserver, signed_addresses=signed, **OPERATOR) as site:
        route = await site.admin.topic_route("orders")
        route.broker_datas.append(BrokerData("c", "stranger", {0: "192.0.2.1:10911"}))

        async def topic_route(topic: str) -> Any:
            return route

        site.answers(topic_route=topic_route)
        answer = await sent(site)

    assert answer.status_code == 400
    assert "the console signs for its own broker only, and orders is also at 192.0.2.1:10911: use halfmoon produce" in site.said(
        answer
    )
    assert count_of(cluster) == before
