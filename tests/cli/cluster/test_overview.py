"""`halfmoon cluster` against a running broker, and one that is gone."""

from __future__ import annotations

from halfmoon.hot import NATIVE
from halfmoon.testing.local import LocalCluster
from tests.waiting import until


def test_brokers_are_shown_with_their_clusters_ids_addresses_and_figures(run, cluster):
    ran = run("cluster", "--json")

    (broker,) = ran.json()
    assert ran.code == 0
    shown = [broker[name] for name in ("cluster", "name", "id", "address", "version", "native", "fault")]
    assert shown == ["DefaultCluster", "broker-a", 0, cluster.broker, "V4_9_8", NATIVE, None]
    assert {type(broker[name]) for name in ("in_per_second", "out_per_second")} == {float}
    assert 0 < broker["disk_used"] < 1
    assert 0 < broker["uptime_ms"] < 600_000


def test_rates_are_of_what_was_sent(run, topic):
    run("produce", "--topic", topic, "--count", "1000", "x")

    until(lambda: run("cluster", "--json").json()[0]["in_per_second"] > 0)


def test_people_see_a_line_a_broker(run, cluster):
    lines = [line.split() for line in run("cluster").out.splitlines() if "broker-a" in line]

    assert [line[:5] for line in lines] == [["DefaultCluster", "broker-a", "0", cluster.broker, "V4_9_8"]]
    assert any(cell.endswith("%") for cell in lines[0])


def test_a_broker_that_does_not_answer_is_said_and_exit_code_1(run_alone, tmp_path):
    with LocalCluster(tmp_path / "data", {"brokerIP1": "127.0.0.9"}) as cluster:  # it tells clients an address where nobody is
        ran = run_alone("cluster", "-n", cluster.nameserver)
        (broker,) = run_alone("cluster", "-n", cluster.nameserver, "--json").json()

    assert ran.code == 1
    assert "does not answer: connect to" in ran.out
    assert "127.0.0.9" in broker["fault"]
    assert (broker["name"], broker["version"], broker["uptime_ms"]) == ("broker-a", None, None)
