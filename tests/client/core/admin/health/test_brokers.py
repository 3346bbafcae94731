"""Statistics of brokers, read carefully."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.health.brokers import brokers, slaves
from halfmoon.errors import BrokerError
from halfmoon.results import SlaveStatus
from halfmoon.wire.bodies import BrokerData, ClusterInfo, CopiesState, KVTable, SlaveState, to_json
from halfmoon.wire.headers.admin import GetBrokerHaStatus, GetBrokerRuntimeInfo
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from tests.client.core.admin.health.test_status import INFO, status_of
from tests.client.core.admin.test_admin import admin
from tests.client.scripted import Reply, Scripted


def test_numbers_of_a_broker():
    [broker] = status_of({"a": INFO}).brokers
    assert (broker.in_per_second, broker.out_per_second, broker.in_today, broker.out_today) == (12.5, 3.0, 100, 0)
    assert (broker.transactions_pending, broker.oldest_pending_ms, broker.requests_refused) == (2, 60_000, 7)
    assert broker.uptime_ms > 0


def test_a_broker_that_has_not_looked_at_its_disk_says_no_share():
    status = status_of({"a": {**INFO, "commitLogDiskRatio": "-1.0"}}, disk=0.01)
    assert (status.health, status.brokers[0].disk_used) == ("healthy", None)


@pytest.mark.parametrize("text", ["", "NaN", "x", "inf", "-1", "1" * 400, "٣"])
def test_what_is_no_number_is_none_and_stops_nothing(text):
    status = status_of({"a": dict.fromkeys(INFO, text)}, lag=0, pending_age_ms=0)
    [broker] = status.brokers
    assert (broker.transactions_pending, broker.oldest_pending_ms, broker.uptime_ms) == (None, None, None)


@pytest.mark.parametrize(
    ("of_master", "of_slave", "behind"),
    [
        ({"commitLogMaxOffset": "500"}, {"commitLogMaxOffset": "460"}, (40, None)),
        ({"commitLogMaxOffset": "500"}, {"commitLogMaxOffset": "510"}, (0, None)),
        ({"commitLogMaxOffset": "500"}, {"commitLogMaxOffset": "9", "slaveBehindBytes": "7", "slaveBehindMs": "30"}, (7, 30)),
        ({"commitLogMaxOffset": "500"}, {"commitLogMaxOffset": "x"}, (None, None)),
        (None, {"commitLogMaxOffset": "460"}, (None, None)),
    ],
)
def test_how_far_a_slave_is_behind_it_says_itself_or_both_ends_do(of_master, of_slave, behind):
    script, infos = Scripted(), {"m": of_master, "s": of_slave}
    core = admin(script)
    members = BrokerData("C", "a", {0: "m", 1: "s"})
    script.on(GetBrokerClusterInfo, Reply(body=to_json(ClusterInfo({"a": members}, {"C": ["a"]}))))
    script.on(
        GetBrokerRuntimeInfo,
        lambda seen: Reply(2) if infos[seen.address] is None else Reply(body=to_json(KVTable(infos[seen.address]))),
    )

    master, slave = script.run(brokers(core))

    assert (slave.behind_bytes, slave.behind_ms) == behind
    assert (master.behind_bytes, master.behind_ms) == (None, None)


def test_the_slaves_of_a_master_are_listed_where_it_knows_them():
    script = Scripted()
    state = CopiesState(ha_connection_info=[SlaveState(addr="10.0.0.9:4000", diff=100, behind_ms=250, in_sync=True)])
    script.on(GetBrokerHaStatus, Reply(body=to_json(state)))
    assert script.run(slaves(admin(script), "m")) == [SlaveStatus("10.0.0.9:4000", 100, 250, True)]
    script.on(GetBrokerHaStatus, Reply(3))
    assert script.run(slaves(admin(script), "m")) == []
    script.on(GetBrokerHaStatus, Reply(1))
    with pytest.raises(BrokerError):
        script.run(slaves(admin(script), "m"))
