"""Events against a broker with accounts: publishers and consumers sign with the settings of their clients, which nothing shows."""

from __future__ import annotations

import pytest

from halfmoon import Admin, LocalTransactionState
from halfmoon.events import Consumers, Publisher, local_transaction, on
from halfmoon.testing.local import LocalCluster
from tests.broker.access.rule_files import write
from tests.waiting import until

SECRET = "the secret of the shop"
RULES = f"""
accounts:
- {{accessKey: shop-service, secretKey: {SECRET}, topicPerms: [TP_ORDER=PUB|SUB], groupPerms: [P_shop=PUB, S_mail=SUB]}}
- {{accessKey: operator, secretKey: another secret, admin: true}}
"""
SIGNED = {"access_key": "shop-service", "secret_key": SECRET}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory):
    data = tmp_path_factory.mktemp("access") / "store"
    write(data, RULES)
    with LocalCluster(data, {"aclEnable": "true"}) as cluster:
        with Admin(nameserver=cluster.nameserver, access_key="operator", secret_key="another secret") as admin:
            admin.create_topic("TP_ORDER", queue_count=2)
        yield cluster.nameserver


def test_an_event_is_published_and_consumed_by_an_account_with_no_more_than_these_permissions(nameserver, caplog):
    seen = []

    @on("S_mail", "TP_ORDER", "EC_PAID")
    def mail(event):
        seen.append(event.payload)

    publisher = Publisher("P_shop", nameserver, topics=["TP_ORDER"], **SIGNED)
    publisher.check("TP_ORDER", "EC_PAID")(lambda event, context: LocalTransactionState.UNKNOWN)
    with publisher, Consumers(mail, nameserver=nameserver, rebalance_ms=200, **SIGNED) as consumers:
        with local_transaction():
            publisher.publish("TP_ORDER", "EC_PAID", {"order_id": 42}, transactional=True)
        until(lambda: seen)
        shown = repr(publisher) + repr(consumers) + repr(publisher.transport)

    assert seen == [{"order_id": 42}]
    assert SECRET not in shown + caplog.text
