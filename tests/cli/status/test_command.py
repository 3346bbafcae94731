"""`halfmoon status` against a running broker, and without one."""

from __future__ import annotations

import socket

import pytest

from halfmoon import Admin
from halfmoon.cli.status.command import Thresholds
from halfmoon.errors import ConsumerNotOnline, SystemError_
from halfmoon.hot import NATIVE
from halfmoon.results import StatusLimits


def test_a_cluster_that_works_is_healthy(run):
    ran = run("status", "--json")

    found = ran.json()
    assert (ran.code, found["health"], found["faults"]) == (0, "healthy", [])
    assert [broker["name"] for broker in found["brokers"]] == ["broker-a"]
    assert run("status").out.startswith("healthy\n")


def test_it_is_shown_whether_a_broker_has_the_compiled_twin(run):
    assert run("status", "--json").json()["brokers"][0]["native"] == (NATIVE or "")
    shown = run("status").out
    assert (f"native {NATIVE}" in shown, "without the package halfmoon-native: broker-a" in shown) == (bool(NATIVE), not NATIVE)


def test_too_much_backlog_is_degraded_and_exit_code_1(run, topic):
    run("produce", "--topic", topic, "1", "2", "3", "4", "5", "6")
    run("consume", "--topic", topic, "--group", "C_slow", "--count", "2")

    ran = run("status", "--max-lag", "1", "--json")

    assert (ran.code, ran.json()["health"]) == (1, "degraded")
    assert ran.json()["backlog"]["C_slow"]["messages"] == 4
    assert ran.json()["backlog"]["C_slow"]["behind_ms"] is not None
    assert "C_slow" in ran.json()["faults"][0]


def test_a_disk_that_is_as_full_as_that_is_degraded(run):
    ran = run("status", "--max-disk", "1", "--json")
    assert ran.code == (1 if ran.json()["brokers"][0]["disk_used"] >= 0.01 else 0)
    assert ran.json()["faults"] == ([f"broker-a: its disk is {ran.json()['brokers'][0]['disk_used']:.0%} full"] if ran.code else [])


def test_every_threshold_is_a_limit_and_the_defaults_are_those_of_the_client():
    given = Thresholds(
        max_lag=1, max_pending_age="2s", max_disk=3, max_stuck="4s", max_memberless="5s", max_undecidable="6s", min_certificate="7s"
    )

    assert given.limits() == StatusLimits(1, 2_000, 0.03, 4_000, 5_000, 6_000, 7_000)
    assert Thresholds().limits() == StatusLimits()


def test_what_a_broker_refused_is_counted(run, cluster):
    before = run("status", "--json").json()["brokers"][0]["requests_refused"]
    with Admin(nameserver=cluster.nameserver) as admin:
        with pytest.raises(ConsumerNotOnline):  # tools look for members of groups that have none: an answer like others
            admin.consumer_connections("C_nobody")
        with pytest.raises(SystemError_):
            admin.update_broker_config(cluster.broker, {"fileReservedTime": "soon"})
    assert run("status", "--json").json()["brokers"][0]["requests_refused"] == before + 1


def test_version_uptime_and_refusals_are_shown(run):
    words = run("status").out
    assert all(word in words for word in ("up for", "refused", "version", "V"))
    assert run("status", "--json").json()["brokers"][0]["uptime_ms"] > 0


def test_nobody_there_is_down_and_exit_code_1(run_alone):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: whoever connects is refused
        ran = run_alone("status", "--nameserver", f"127.0.0.1:{taken.getsockname()[1]}", "--json")

    assert (ran.code, ran.json()["health"]) == (1, "down")
