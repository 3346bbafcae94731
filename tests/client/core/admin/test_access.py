"""Accounts at all brokers: lists, changes and explanations, without secrets in any text."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.access import accounts, delete_account, explain_access, grants_of, put_account
from halfmoon.errors import AccessRefused, BrokerError, UsageError
from halfmoon.wire.headers.access import (
    AclConfig,
    DeleteAclConfig,
    GetBrokerClusterAclConfig,
    PlainAccessConfig,
    UpdateAndCreateAclConfig,
)
from halfmoon.wire.json import to_json
from halfmoon.wire.needs import DENY, PUB, SUB
from tests.client.core.admin.test_admin import admin
from tests.client.scripted import Reply, Scripted

SHOP = PlainAccessConfig(
    access_key="shop-service", secret_key="the secret", topic_perms=["orders=PUB|SUB", "audit = PUB", "odd=ALL"],
    group_perms=["shop=SUB"], default_topic_perm="SUB",
)  # fmt: skip


def scripted(*configs: PlainAccessConfig, white=()):
    script = Scripted()
    core = admin(script)
    script.on(
        GetBrokerClusterAclConfig,
        Reply(body=to_json(AclConfig(global_white_addrs=list(white), plain_access_configs=list(configs)))),
    )
    return script, core


def test_the_accounts_of_every_broker_are_returned_and_show_no_secret():
    script, core = scripted(SHOP, white=["10.0.0.1"])

    found = script.run(accounts(core))

    assert [(at.broker, at.white, at.accounts[0].access_key) for at in found] == [
        ("broker-a", ["10.0.0.1"], "shop-service"),
        ("broker-b", ["10.0.0.1"], "shop-service"),
    ]
    assert "the secret" not in repr(found)


def test_an_account_is_put_and_removed_at_every_broker():
    script, core = scripted()
    script.on(UpdateAndCreateAclConfig, Reply())
    script.on(DeleteAclConfig, Reply())

    put = script.run(put_account(core, "shop-service", "the secret", topics={"a": "PUB", "b": "SUB"}, group_default="SUB"))
    removed = script.run(delete_account(core, "shop-service"))

    assert put == removed == ["broker-a", "broker-b"]
    request = script.asked(UpdateAndCreateAclConfig)[0].request
    assert (request.topic_perms, request.group_perms, request.default_group_perm) == ("a=PUB,b=SUB", None, "SUB")


def test_a_wrong_permission_is_refused_before_any_broker_is_asked():
    script, core = scripted()
    with pytest.raises(UsageError, match="'ALL' is no permission"):
        script.run(put_account(core, "shop-service", "the secret", groups={"g": "ALL"}))
    assert script.asked(UpdateAndCreateAclConfig) == []


def test_a_brokers_refusal_is_raised():
    script, core = scripted()
    script.on(DeleteAclConfig, Reply(210, remark="deleted failed"))
    script.on(GetBrokerClusterAclConfig, Reply(1, remark="org.apache.rocketmq.acl.common.AclException: No accessKey is configured"))

    with pytest.raises(BrokerError, match="deleted failed"):
        script.run(delete_account(core, "nobody1"))
    with pytest.raises(AccessRefused, match="No accessKey"):
        script.run(accounts(core))


@pytest.mark.parametrize(("asked", "allowed", "reason"), [
    ({"read": "orders", "group": "shop"}, True, "topic orders has PUB|SUB"),
    ({"read": "orders", "group": "other"}, False, "group other is not named, and groups have DENY"),
    ({"send": "orders"}, True, "topic orders has PUB|SUB"),
    ({"read": "audit"}, False, "topic audit has PUB"),
    ({"read": "unknown"}, True, "topic unknown is not named, and topics have SUB"),
    ({"send": "odd"}, False, "topic odd has DENY"),
])  # fmt: skip
def test_what_an_account_may_do_is_explained_by_the_rule_that_decides(asked, allowed, reason):
    script, core = scripted(SHOP)

    found = script.run(explain_access(core, "shop-service", **asked))

    assert [(each.broker, each.allowed) for each in found] == [("broker-a", allowed), ("broker-b", allowed)]
    assert reason in found[0].reasons


def test_white_addresses_from_which_nothing_is_checked_are_explained_too():
    own = PlainAccessConfig(access_key="shop-service", secret_key="the secret", white_remote_address="10.0.0.2")
    script, core = scripted(own, white=["10.0.0.1"])

    found = script.run(explain_access(core, "shop-service", send="orders"))[0]

    assert not found.allowed
    assert found.reasons[1:] == [
        "from its white addresses it may do everything: 10.0.0.2",
        "white addresses need no account: 10.0.0.1",
    ]


def test_an_unknown_account_or_an_empty_question_is_refused():
    script, core = scripted(SHOP)
    with pytest.raises(UsageError, match="broker broker-a has no account nobody1"):
        script.run(explain_access(core, "nobody1", read="orders"))
    with pytest.raises(UsageError, match="give a topic"):
        script.run(explain_access(core, "shop-service"))


def test_permissions_are_read_as_a_broker_reads_them():
    grants = grants_of(SHOP)

    assert grants.permissions == {"orders": PUB | SUB, "audit": PUB, "odd": DENY, "%RETRY%shop": SUB}
    assert (grants.topic_default, grants.group_default) == (SUB, DENY)
