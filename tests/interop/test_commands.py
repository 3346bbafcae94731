"""`halfmoon config`, `client` and `cluster` against Apache's brokers, with clients of ours and a Java client connected."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from halfmoon import Admin, Message, Producer, PullConsumer
from halfmoon.cli.main import main
from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer
from tests.waiting import until

Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture(scope="module", params=["4.7.1", "4.9.7", "5.3.3"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(request.param, tmp_path_factory.mktemp("apache"))
    found.start()
    yield found
    found.kill()


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return ``run(*words)``: exit code, the JSON on standard output, and what went to standard error."""

    def command(*words: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        code = main([*words, "--json", "--nameserver", cluster.nameserver])
        written = capsys.readouterr()
        return code, json.loads(written.out) if written.out else None, written.err

    return command


def test_brokers_are_shown_with_their_versions_and_figures(cluster: Cluster, run: Run) -> None:
    with Producer(group="P_first", nameserver=cluster.nameserver) as producer:  # that of 4.7.1 knows no disk before it has a log
        producer.send(Message("First", b"x"))
    until(lambda: (found := run("cluster"))[0] == 0 and found[1][0]["disk_used"], "a broker that looked at its disk", within_s=120)
    code, (broker,), _ = run("cluster")

    assert (code, broker["cluster"], broker["name"], broker["id"]) == (0, "DefaultCluster", "broker-a", 0)
    assert broker["address"] == f"127.0.0.1:{cluster.broker_port}"
    assert broker["version"] == f"V{cluster.version.replace('.', '_')}"
    assert 0 < broker["disk_used"] < 1
    assert 0 < broker["uptime_ms"] < 3_600_000


@pytest.mark.parametrize("of", ["broker", "nameserver"])
def test_settings_are_read_without_defaults_that_are_ours(cluster: Cluster, run: Run, of: str) -> None:
    code, (server,), _ = run("config", "get", "--of", of)

    rows = {row["setting"]: row for row in server["settings"]}
    assert (code, rows["listenPort"]["changed"]) == (0, False)
    assert rows["listenPort"]["value"] == str(cluster.broker_port if of == "broker" else cluster.nameserver_port)
    assert {(row["default"], row["reason"], row["set"]) for row in rows.values()} == {(None, None, None)}


def test_settings_are_changed_and_what_took_no_effect_is_said(run: Run) -> None:
    code, (outcome,), _ = run("config", "set", "transaction_check_max=21", "noSuchKey=1", "traceTopicEnable=perhaps")

    assert code == 1
    assert outcome["changed"]["transactionCheckMax"] == {"was": "15", "is": "21"}
    assert outcome["without_effect"] == {"noSuchKey": "it has no such setting", "traceTopicEnable": "it is false"}
    assert run("config", "get", "transactionCheckMax")[1][0]["settings"][0]["value"] == "21"
    assert run("config", "set", "transactionCheckMax=15")[0] == 0


def test_a_setting_on_the_black_list_is_refused(cluster: Cluster, run: Run) -> None:
    code, (outcome,), _ = run("config", "set", "--of", "nameserver", "kvConfigPath=/elsewhere")

    if cluster.version == "4.7.1":  # which has no such list
        assert (code, outcome["error"]) == (0, None)
    else:
        assert code == 1
        assert "Can not update config" in outcome["error"]


def test_connected_clients_are_listed_by_group(cluster: Cluster, run: Run, java: Callable[..., JavaPeer]) -> None:
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic("Clients", queue_count=1)
    consumer = PullConsumer(group="C_ours", nameserver=cluster.nameserver)
    consumer.subscribe("Clients")
    peer = java("4.9.7")
    order: dict[str, Any] = {"topic": "Clients", "group": "P_java", "nameserver": cluster.nameserver}
    peer.call("producer", **order)
    with Producer(group="P_ours", nameserver=cluster.nameserver) as producer, consumer:
        producer.send(Message("Clients", b"x"))
        peer.call("send", body="x", **order)
        expected = {("producer", "P_ours", "PYTHON", "V4_9_8"), ("producer", "P_java", "JAVA", "V4_9_7")}
        listed = until(
            lambda: clients(run, "P_java") and clients(run, "C_ours") and clients(run, "P_ours") and run("client", "list")
        )
        of_group = clients(run, "P_java") | clients(run, "P_ours")
    peer.call("producer.stop", **order)

    code, found, _ = listed
    assert code == 0
    old = cluster.version == "4.7.1"  # lists the producers of a group only
    assert found["without_producers"] == ([f"127.0.0.1:{cluster.broker_port}"] if old else [])
    every = {tuple(each[name] for name in ("kind", "group", "language", "version")) for each in found["clients"]}
    assert ("consumer", "C_ours", "PYTHON", "V4_9_8") in every
    assert every & expected == (set() if old else expected)
    assert of_group == expected


def clients(run: Run, group: str) -> set[tuple[str, ...]]:
    found = run("client", "list", "--group", group)[1]["clients"]
    return {tuple(each[name] for name in ("kind", "group", "language", "version")) for each in found}
