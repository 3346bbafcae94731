"""Settings of running servers: with reasons, changed by operators, secrets masked, of Apache's the values alone."""

from __future__ import annotations

import pytest

from halfmoon.console.pages.settings import SECRET
from halfmoon.settings import MASK
from tests.console.pages.test_cluster import HOSTILE, text_of

APACHES = {
    "brokerName": "b",
    "flushDiskType": "ASYNC_FLUSH",
    "maxMessageSize": "4194304",
    "initAuthenticationUser": '{"password":"sesame"}',
    HOSTILE: HOSTILE,
}


def rows_of(facts):
    return {row["setting"]: row for row in facts["settings"]}


@pytest.fixture
def apache(site):
    """What the site's broker answers as settings: those of one of Apache's, which takes what it knows and ignores the rest."""
    found = dict(APACHES)

    async def broker_config(_address):
        return dict(found)

    async def update_broker_config(_address, settings):
        found.update({name: value for name, value in settings.items() if name == "flushDiskType"})

    site.admin.broker_config, site.admin.update_broker_config = broker_config, update_broker_config
    return found


async def test_every_setting_of_a_broker_with_value_default_and_reason(site, cluster):
    page, facts = await site.text("/settings"), await site.json("/settings")
    row = rows_of(facts)["transactionTimeOut"]
    assert (row["value"], row["default"], row["changed"]) == ("6000", "6000", False)
    assert row["reason"] in page
    assert facts["server"] == {"kind": "broker", "address": cluster.broker, "name": "broker-a/0"}
    as_set = [row for row in facts["settings"] if row["value"] != MASK and not row["changed"]]  # not the secrets
    assert not [row for row in as_set if row["default"] not in (None, row["value"])]


async def test_only_those_that_differ_from_the_default(site):
    facts = await site.json("/settings", only="changed")
    assert facts["settings"]
    assert all(row["changed"] for row in facts["settings"])
    assert "changed" in text_of(await site.text("/settings", only="changed"))


async def test_settings_of_a_name_server(site, cluster):
    facts = await site.json("/settings", nameserver=cluster.nameserver)
    assert facts["server"]["kind"] == "nameserver"
    assert {row["set"] for row in facts["settings"]} >= {"any time", "at start"}


async def test_an_operator_changes_one_and_sees_it_marked(site, cluster):
    asked = {"broker": cluster.broker, "setting": "transactionCheckMax"}
    before = rows_of(await site.json("/settings"))["transactionCheckMax"]
    assert 'name="value"' in await site.text("/settings", **asked)
    try:
        answer = await site.post("/settings/set", value="7", **asked)
        assert site.said(answer) == f"broker-a/0: transactionCheckMax is 7, was {before['value']}"
        row = rows_of(await site.json("/settings", only="changed"))["transactionCheckMax"]
        assert (row["value"], row["changed"]) == ("7", True)
        [entry] = site.services.audit.read(1)
        assert entry.fields == {**asked, "value": "7"}
        assert entry.outcome.startswith("done: broker-a/0")
    finally:
        await site.admin.update_broker_config(cluster.broker, {"transactionCheckMax": before["value"]})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"setting": "transactionCheckMax", "value": "soon"}, "transactionCheckMax"),
        ({"setting": "brokerName", "value": "x"}, "broker-a/0 has no setting brokerName that can be set here"),
        ({"setting": "brokerRole", "value": "SLAVE"}, "that can be set here"),
        ({"setting": HOSTILE, "value": "1"}, "that can be set here"),
        ({"setting": "transactionCheckMax", "value": "7\nbrokerPermission=0"}, "transactionCheckMax"),
        ({"setting": "transactionCheckMax", "value": "1" * 5000}, "at most 4,096"),
        ({"setting": "transactionCheckMax", "value": "7", "broker": "127.0.0.1:1"}, "the cluster has no server 127.0.0.1:1"),
        ({"value": "7"}, "setting is missing"),
    ],
)
async def test_what_is_refused_is_said_and_changes_nothing(site, cluster, fields, words):
    before = await site.admin.broker_config(cluster.broker)
    answer = await site.post("/settings/set", **{"broker": cluster.broker, **fields})
    assert answer.status_code in (400, 409)
    assert words in site.said(answer)
    assert await site.admin.broker_config(cluster.broker) == before


async def test_viewers_see_no_form_and_may_not_send_one(site, cluster):
    site.log_in("looker", "viewer")
    page = await site.text("/settings", setting="transactionCheckMax")
    assert "/settings/set" not in page
    assert "#edit" not in page
    answer = await site.post("/settings/set", broker=cluster.broker, setting="transactionCheckMax", value="7")
    assert answer.status_code == 403


async def test_of_apaches_broker_the_values_are_shown_and_its_passwords_are_not(site, apache):
    page, facts = await site.text("/settings"), await site.json("/settings")
    assert not facts["ours"]
    assert rows_of(facts)["flushDiskType"]["value"] == "ASYNC_FLUSH"
    assert rows_of(facts)["initAuthenticationUser"]["value"] == "******"
    assert "sesame" not in page
    assert "Defaults and reasons are known for Halfmoon's servers only." in page
    assert "only=changed" not in page
    assert "<script>alert" not in page
    assert "\u202e" not in page


async def test_apaches_broker_takes_what_it_knows_and_what_it_ignores_is_said(site, cluster, apache):
    answer = await site.post("/settings/set", broker=cluster.broker, setting="flushDiskType", value="SYNC_FLUSH")
    assert site.said(answer) == "broker-a/0: flushDiskType is SYNC_FLUSH, was ASYNC_FLUSH"
    answer = await site.post("/settings/set", broker=cluster.broker, setting="maxMessageSize", value="1")
    assert "maxMessageSize took no effect: it is 4194304" in site.said(answer)
    for name in ("initAuthenticationUser", "brokerName"):
        answer = await site.post("/settings/set", broker=cluster.broker, setting=name, value="sesame")
        assert "that can be set here" in site.said(answer)
        kept = site.services.audit.read(1)[0].fields
        assert (kept["setting"], kept["value"]) == (name, "sesame" if name == "brokerName" else "(left out)")


@pytest.mark.parametrize("name", ["brokerClusterName", "brokerId", "brokerIP1", "listenPort", "haListenPort", "storePathCommitLog",
                                  "mappedFileSizeCommitLog", "rocketmqHome", "kvConfigPath", "configStorePath"])  # fmt: skip
async def test_what_apaches_servers_read_at_their_start_alone_is_not_offered(site, apache, name):
    apache[name] = "1"
    rows = rows_of(await site.json("/settings"))
    assert (rows[name]["can_be_set"], rows["flushDiskType"]["can_be_set"]) == (False, True)


async def test_what_the_machine_has_is_no_change_of_a_setting(site):
    rows = rows_of(await site.json("/settings"))
    assert (rows["memory_bytes"]["changed"], rows["clientCallbackExecutorThreads"]["changed"]) == (False, False)
    assert int(rows["memory_bytes"]["value"]) > 2**28


@pytest.mark.parametrize("name", ["tls.server.keyPassword", "secretKey", "innerClientAuthenticationCredentials", "securityToken"])
def test_names_of_secrets(name):
    assert SECRET.search(name)
