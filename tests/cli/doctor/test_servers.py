"""Checks of servers that need no server: times that brokers tell, ports of others."""

from __future__ import annotations

import pytest

from halfmoon.cli.doctor import servers
from halfmoon.cli.doctor.servers import ports, running_of


@pytest.mark.parametrize(
    ("text", "ms"),
    [("[ 1 days, 2 hours, 3 minutes, 4 seconds ]", 93_784_000), ("[ x days, 2 hours, 3 minutes, 4 seconds ]", None), ("", None)],
)
def test_the_time_that_a_broker_runs_is_read(text, ms):
    assert running_of(text) == ms


def test_a_broker_at_the_port_of_a_name_server_is_named(cluster, monkeypatch):
    port = int(cluster.broker.rpartition(":")[2])
    monkeypatch.setattr(servers, "PORTS", {port: "name server"})

    [check] = ports()

    assert check.state == "warning"
    assert check.what == "a broker listens, where halfmoon serve puts its name server"


def test_a_clock_that_differs_is_a_warning(monkeypatch):
    info = {"runtime": "[ 0 days, 0 hours, 1 minutes, 0 seconds ]", "bootTimestamp": "1000"}
    monkeypatch.setattr("time.time_ns", lambda: 41_000 * 1_000_000)

    clock = list(servers._broker("broker a", "V", info, 1.0))[1]

    assert (clock.state, clock.what) == ("warning", "is 20 s ahead of this machine's")


@pytest.mark.parametrize(("info", "page"), [({"pairState": "follower of no master, epoch 3"}, "pairs"), ({}, "production")])
def test_a_fault_of_a_member_of_a_pair_names_the_page_about_pairs(info, page):
    info = {"brokerFaults": "127.0.0.1:21011 is not the master", **info}

    check = next(servers._broker("broker broker-a (1)", "V", info, 1.0))

    assert (check.state, check.what, page in check.do) == ("problem", "127.0.0.1:21011 is not the master", True)
