"""`halfmoon config` against a running broker and name server."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def broker_settings():
    return {"transactionTimeOut": 3000}


def settings(ran) -> dict[str, dict]:
    (server,) = ran.json()
    return {row["setting"]: row for row in server["settings"]}


def test_a_setting_is_shown_with_its_default_its_reason_and_when_it_can_be_set(run, cluster):
    ran = run("config", "get", "transactionTimeOut", "--json")

    (server,) = ran.json()
    assert (server["server"], server["address"]) == ("broker-a", cluster.broker)
    assert server["settings"] == [
        {
            "setting": "transactionTimeOut", "name": "transaction_timeout_ms", "value": "3000", "default": "6000", "java":
            "transactionTimeOut", "set": "any time", "changed": True, "reason": "Age of a half message before its first check.",
        }
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["transactionTimeOut", "transaction_timeout_ms", "broker.transaction_timeout_ms"])
def test_a_setting_is_named_by_rocketmqs_key_or_ours(run, key):
    assert list(settings(run("config", "get", key, "--json"))) == ["transactionTimeOut"]


def test_without_names_all_are_shown_and_the_changed_ones_marked(run):
    every, changed = settings(run("config", "get", "--json")), settings(run("config", "get", "--changed", "--json"))

    assert len(every) > 100
    assert changed == {key: row for key, row in every.items() if row["changed"]}
    assert "transactionTimeOut" in changed
    assert "longPollingEnable" not in changed
    lines = run("config", "get", "transactionTimeOut", "longPollingEnable").out.splitlines()
    assert [line.split()[:4] for line in lines if "transactionTimeOut" in line] == [["*", "transactionTimeOut", "3000", "6000"]]
    assert [line.split()[:3] for line in lines if "longPollingEnable" in line] == [["longPollingEnable", "true", "true"]]


def test_what_can_only_be_set_at_the_start_says_so(run):
    assert settings(run("config", "get", "listenPort", "--json"))["listenPort"]["set"] == "at start"


def test_an_unknown_setting_is_refused_with_the_nearest_one(run):
    ran = run("config", "get", "transactionTimeout")

    assert ran.code == 2
    assert "did you mean 'transactionTimeOut'?" in ran.err


def test_the_name_server_shows_its_settings(run, cluster):
    shown = settings(run("config", "get", "--of", "nameserver", "--json"))

    assert shown["listenPort"]["value"] == cluster.nameserver.rpartition(":")[2]
    assert shown["scanNotActiveBrokerInterval"]["set"] == "any time"
    assert shown["brokers_max"]["set"] == "at start"


@pytest.mark.parametrize(
    ("of", "key", "value"), [("broker", "transactionCheckMax", "7"), ("nameserver", "waitSecondsForService", "60")]
)
def test_a_setting_is_changed_while_the_server_runs(run, of, key, value):
    before = settings(run("config", "get", "--of", of, key, "--json"))[key]["value"]

    ran = run("config", "set", "--of", of, f"{key}={value}", "--json")

    (outcome,) = ran.json()
    assert (ran.code, outcome["changed"]) == (0, {key: {"was": before, "is": value}})
    assert settings(run("config", "get", "--of", of, key, "--json"))[key]["value"] == value


def test_a_change_is_told_in_words(run):
    ran = run("config", "set", "transaction_check_interval_ms=50000")

    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "broker-a: transactionCheckInterval is 50000, was 60000\n"


@pytest.mark.parametrize(
    ("assignment", "why"),
    [
        ("listenPort=1", "can only be set at the start: listenPort"),
        ("transactionTimeOut=soon", "must be a whole number"),
        ("brokerConfigPath=/x", "black list: brokerConfigPath"),
        ("noSuchKey=1", "unknown setting 'noSuchKey'"),
    ],
)
def test_what_a_server_refuses_is_said_and_changes_nothing(run, assignment, why):
    ran = run("config", "set", "transactionCheckMax=9", assignment)

    assert ran.code == 1
    assert ran.out == ""
    assert ran.err.startswith("broker-a: refused: ")
    assert why in ran.err
    assert settings(run("config", "get", "transactionCheckMax", "--json"))["transactionCheckMax"]["value"] != "9"


def test_what_takes_no_effect_is_said_with_the_reason(run):
    ran = run("config", "set", "flushDelayOffsetInterval=1000", "longPollingEnable=yes", "--json")

    (outcome,) = ran.json()
    assert ran.code == 1
    assert outcome["without_effect"].keys() == {"flushDelayOffsetInterval"}
    assert "progress is kept at once" in outcome["without_effect"]["flushDelayOffsetInterval"]
    assert outcome["changed"] == {"longPollingEnable": {"was": "true", "is": "true"}}


@pytest.mark.parametrize("words", [("get",), ("set", "transactionCheckMax=8")], ids=" ".join)
def test_a_broker_is_chosen_by_its_name_or_its_address(run, cluster, words):
    assert run("config", *words, "--broker", "broker-a").code == 0
    assert run("config", *words, "--broker", cluster.broker).code == 0
    refused = run("config", *words, "--broker", "broker-b")
    assert (refused.code, "known: broker-a" in refused.err) == (2, True)


def test_what_is_no_assignment_is_refused(run):
    assert run("config", "set", "transactionTimeOut").code == 2


def test_a_server_that_does_not_answer_is_said_beside_those_that_do(run, cluster):
    ran = run(
        "config", "set", "--of", "nameserver", "-n", f"{cluster.nameserver};127.0.0.1:1", "waitSecondsForService=50", "--json"
    )

    answered, silent = ran.json()
    assert ran.code == 1
    assert (answered["error"], list(answered["changed"])) == (None, ["waitSecondsForService"])
    assert (silent["changed"], silent["error"][:24]) == ({}, "connect to 127.0.0.1:1 f")
