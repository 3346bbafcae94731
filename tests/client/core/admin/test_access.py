"""Accounts at all brokers: lists, changes and explanations, without secrets in any text."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.access import accounts, delete_account, explain_access, grants_of, put_account, rotate_secret
from halfmoon.errors import AccessRefused, BrokerError, NetworkError, PartlyDone, UsageError
from halfmoon.wire.bodies import BrokerData, ClusterInfo, KVTable
from halfmoon.wire.headers.access import (
    AclConfig,
    DeleteAclConfig,
    GetBrokerClusterAclConfig,
    PlainAccessConfig,
    UpdateAndCreateAclConfig,
)
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from halfmoon.wire.json import to_json
from halfmoon.wire.needs import DENY, PUB, SUB
from tests.client.core.admin.test_admin import admin
from tests.client.scripted import REFUSED, Reply, Scripted

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


RUNTIME = Reply(body=to_json(KVTable(table={"aclPreviousSecrets": "accounts=0"})))


def test_a_secret_is_rotated_at_every_broker_and_nothing_else_of_the_account_is_sent():
    script, core = scripted()
    script.on(GetBrokerRuntimeInfo, RUNTIME)
    script.on(UpdateAndCreateAclConfig, Reply())

    assert script.run(rotate_secret(core, "shop-service", "the new secret", 5000)) == ["broker-a", "broker-b"]
    assert [seen.fields for seen in script.asked(UpdateAndCreateAclConfig)] == [
        {"accessKey": "shop-service", "secretKey": "the new secret", "admin": "false", "keepPreviousMs": "5000"}
    ] * 2


def test_no_secret_is_rotated_where_a_broker_would_end_the_one_so_far_at_once():
    script, core = scripted()
    script.on(GetBrokerRuntimeInfo, lambda seen: RUNTIME if seen.address == broker_a else Reply(body=to_json(KVTable(table={}))))
    script.on(UpdateAndCreateAclConfig, Reply())
    broker_a = script.run(accounts(core))[0].address

    with pytest.raises(UsageError, match="broker broker-b keeps no previous secrets: nothing was changed"):
        script.run(rotate_secret(core, "shop-service", "the new secret", 5000))
    assert script.asked(UpdateAndCreateAclConfig) == []


@pytest.mark.parametrize(("since", "used", "words"), [
    (1_700_000_000_000, {}, "good until 2030-01-31T12:00:00Z, not used since 2023-11-14T22:13:20.000Z"),
    (1, {"10.0.0.1": 1000, "10.0.0.2": 9000}, "last used from 10.0.0.2 at 1970-01-01T00:00:09.000Z, 10.0.0.1 at 1970-01-01T"),
    (1, {f"10.0.0.{n}": n for n in range(1, 9)}, "10.0.0.4 at 1970-01-01T00:00:00.004Z, ..."),
    (None, None, "its previous secret expired at 2030-01-31T12:00:00Z"),
])  # fmt: skip
def test_a_previous_secret_is_shown_with_its_time_and_who_uses_it(since, used, words):
    config = PlainAccessConfig(
        access_key="shop-service", previous_secret_until="2030-01-31T12:00:00Z", previous_secret_since=since,
        previous_secret_used=used,
    )  # fmt: skip
    script, core = scripted(config, SHOP)

    assert words in script.run(explain_access(core, "shop-service", read="orders"))[0].reasons[1]
    (text,) = script.run(accounts(core))[0].notes
    assert text.startswith("account shop-service: its previous secret ")


def test_the_certificates_of_an_account_are_shown():
    script, core = scripted(PlainAccessConfig(access_key="shop-service", certificates=["shop.example", "spiffe://shop"]))

    said = "certificates in place of signatures: shop.example, spiffe://shop"
    assert script.run(accounts(core))[0].notes == [f"account shop-service: {said}"]
    assert said in script.run(explain_access(core, "shop-service", read="orders"))[0].reasons


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


def test_a_change_of_accounts_that_one_broker_fails_is_made_at_the_others_and_names_it():
    script, core = scripted(SHOP)
    script.on(GetBrokerRuntimeInfo, Reply(body=to_json(KVTable({"aclPreviousSecrets": "0"}))))
    for request in (UpdateAndCreateAclConfig, DeleteAclConfig):
        script.on(request, lambda seen: Reply() if seen.address == "broker-b:1" else REFUSED)

    for change in (
        put_account(core, "shop-service", "the secret"),
        rotate_secret(core, "shop-service", "another secret", 1),
        delete_account(core, "shop-service"),
    ):
        with pytest.raises(PartlyDone, match="done at broker-b, but not at broker-a: connect failed"):
            script.run(change)


def test_an_account_that_an_earlier_call_removed_in_part_is_removed_where_it_still_is():
    script, core = scripted()
    script.on(DeleteAclConfig, lambda seen: Reply() if seen.address == "broker-b:1" else Reply(210, remark="deleted failed"))

    assert script.run(delete_account(core, "shop-service")) == ["broker-b"]


def test_an_account_that_a_broker_refuses_to_remove_is_not_said_to_be_removed():
    script, core = scripted(SHOP)
    script.on(DeleteAclConfig, lambda seen: Reply() if seen.address == "broker-b:1" else Reply(210, remark="several files"))

    with pytest.raises(PartlyDone, match=r"not at broker-a: .*several files"):
        script.run(delete_account(core, "shop-service"))


def with_members(script, **brokers):
    """Have the name servers know these members of brokers: ids with addresses."""
    table = {name.replace("_", "-"): BrokerData("c", name.replace("_", "-"), members) for name, members in brokers.items()}
    script.on(GetBrokerClusterInfo, Reply(body=to_json(ClusterInfo(table, {"c": sorted(table)}))))


def test_a_change_of_accounts_reaches_masters_and_slaves_and_lists_name_both():
    script, core = scripted(SHOP)
    with_members(script, broker_a={0: "a:1", 1: "a:2", 2: "a:3"}, broker_b={0: "b:1"})
    script.on(GetBrokerRuntimeInfo, RUNTIME)
    script.on(UpdateAndCreateAclConfig, Reply())
    script.on(DeleteAclConfig, Reply())
    everywhere = ["broker-a", "broker-a/1", "broker-a/2", "broker-b"]

    assert script.run(put_account(core, "shop-service", "the secret")) == everywhere
    assert script.run(rotate_secret(core, "shop-service", "another secret", 1)) == everywhere
    assert script.run(delete_account(core, "shop-service")) == everywhere
    assert [at.broker for at in script.run(accounts(core))] == everywhere
    assert [each.broker for each in script.run(explain_access(core, "shop-service", read="orders"))] == everywhere
    assert {seen.address for seen in script.asked(DeleteAclConfig)} == {"a:1", "a:2", "a:3", "b:1"}


def test_a_slave_that_does_not_answer_or_refuses_is_named_once_and_keeps_no_other_from_the_change():
    script, core = scripted(SHOP)
    with_members(script, broker_a={0: "a:1", 1: "a:2", 2: "a:3"})
    no_account = Reply(1, remark="org.apache.rocketmq.acl.common.AclException: No acl config for operator")
    script.on(GetBrokerRuntimeInfo, lambda seen: {"a:1": RUNTIME, "a:2": REFUSED, "a:3": no_account}[seen.address])
    off = Reply(209, remark="access control is off")
    for request in (UpdateAndCreateAclConfig, DeleteAclConfig):
        script.on(request, lambda seen: {"a:1": Reply(), "a:2": REFUSED, "a:3": off}[seen.address])
    script.on(
        GetBrokerClusterAclConfig,
        lambda seen: Reply(body=to_json(AclConfig(plain_access_configs=[SHOP]))) if seen.address == "a:1" else REFUSED,
    )

    for change in (
        put_account(core, "shop-service", "the secret"),
        rotate_secret(core, "shop-service", "another secret", 1),
        delete_account(core, "shop-service"),
    ):
        with pytest.raises(PartlyDone, match="done at broker-a, but not at broker-a/1: connect failed") as caught:
            script.run(change)
        assert [*caught.value.failed] == ["broker-a/1", "broker-a/2"]
    failing: list[str] = []
    found = script.run(explain_access(core, "shop-service", read="orders", failing=failing))
    assert [each.broker for each in found] == ["broker-a"]
    assert [text.partition(":")[0] for text in failing] == ["broker-a/1", "broker-a/2"]


def test_a_broker_whose_master_is_not_registered_is_changed_at_its_slave_and_the_master_is_named():
    script, core = scripted()
    with_members(script, broker_a={1: "a:2"})
    script.on(UpdateAndCreateAclConfig, Reply())

    with pytest.raises(
        PartlyDone, match="done at broker-a/1, but not at broker-a: the name servers know no master of this name now"
    ):
        script.run(put_account(core, "shop-service", "the secret"))
    with_members(script)
    with pytest.raises(UsageError, match="no broker is known"):
        script.run(put_account(core, "shop-service", "the secret"))


def test_no_secret_is_rotated_while_a_master_does_not_answer_or_beside_a_slave_that_keeps_one_secret():
    script, core = scripted(SHOP)
    with_members(script, broker_a={0: "a:1", 1: "a:2"})
    script.on(UpdateAndCreateAclConfig, Reply())
    script.on(GetBrokerRuntimeInfo, lambda seen: REFUSED if seen.address == "a:1" else RUNTIME)
    with pytest.raises(NetworkError, match="connect failed"):
        script.run(rotate_secret(core, "shop-service", "another secret", 1))
    script.on(GetBrokerRuntimeInfo, lambda seen: RUNTIME if seen.address == "a:1" else Reply(body=to_json(KVTable({}))))
    with pytest.raises(UsageError, match="broker broker-a/1 keeps no previous secrets: nothing was changed"):
        script.run(rotate_secret(core, "shop-service", "another secret", 1))
    script.on(GetBrokerRuntimeInfo, lambda seen: RUNTIME if seen.address == "a:1" else Reply(1, remark="NoSuchElementException"))
    with pytest.raises(
        UsageError, match=r"broker-a/1 does not tell whether it keeps previous secrets, nothing was changed: .*NoSuch"
    ):
        script.run(rotate_secret(core, "shop-service", "another secret", 1))
    assert script.asked(UpdateAndCreateAclConfig) == []


def test_a_broker_without_an_account_is_explained_beside_one_that_has_it():
    script, core = scripted()
    with_members(script, broker_a={0: "a:1", 1: "a:2"})
    known = {"a:1": [SHOP], "a:2": []}
    script.on(
        GetBrokerClusterAclConfig, lambda seen: Reply(body=to_json(AclConfig(plain_access_configs=known[seen.address])))
    )  # fmt: skip

    found = script.run(explain_access(core, "shop-service", read="orders"))

    assert [(each.broker, each.allowed) for each in found] == [("broker-a", True), ("broker-a/1", False)]
    assert found[1].reasons == ["it has no account shop-service"]
