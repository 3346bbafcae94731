"""`halfmoon cluster` against a running broker, and one that is gone."""

from __future__ import annotations

import pytest

from halfmoon.cli.cluster.overview import _cells
from halfmoon.hot import NATIVE
from halfmoon.results import BrokerStatus
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


@pytest.mark.parametrize(
    ("behind", "shown"), [((None, None), "-"), ((0, 0), "0 B"), ((2048, None), "2.0 KiB"), ((2048, 61_000), "2.0 KiB for 1m01s")]
)
def test_people_see_how_far_a_slave_is_behind(behind, shown):
    broker = BrokerStatus(
        "a", 1, "a:1", "C", "V4", None, None, 1.5, 0.0, 1, 1, None, None, None, None, None, None, "reports", *behind
    )
    assert _cells(broker)[-1] == shown


def test_the_options_of_a_switch_stand_behind_it(run):
    ran = run("cluster", "--json", "switch", "broker-a")
    assert (ran.code, "options of these commands stand behind them: halfmoon cluster switch NAME --json" in ran.err) == (2, True)


def test_a_broker_without_a_pair_cannot_be_switched_and_an_unknown_one_is_named(run, cluster):
    ran = run("cluster", "switch", "broker-a")
    assert f"broker broker-a at {cluster.broker} is not in a pair: start it with --lease" in ran.err
    assert "there is no broker 'broker-x'; known: broker-a" in run("cluster", "switch", "broker-x").err
    ran = run("cluster", "wait", "broker-a")
    assert (ran.code, f"broker broker-a at {cluster.broker} is not in a pair: start it with --lease" in ran.err) == (2, True)
