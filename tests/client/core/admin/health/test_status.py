"""What brokers say, read carefully, and when that counts as degraded or down."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.health.status import SIDE_BY_SIDE, backlogs, status
from halfmoon.errors import NetworkError
from halfmoon.model import MessageQueue
from halfmoon.results import Backlog, StatusLimits
from halfmoon.wire.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumeStats,
    KVTable,
    OffsetWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    to_json,
)  # fmt: skip
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.group import GetAllSubscriptiongroupConfig, GetConsumeStats
from halfmoon.wire.headers.route import GetBrokerClusterInfo, GetRouteinfoByTopic
from tests.client.core.admin.test_admin import admin
from tests.client.scripted import START_MS, Reply, Scripted

INFO = {
    "brokerVersionDesc": "V4_9_7",
    "putTps": "12.5 11.0 10.0",
    "getTransferedTps": "3.0 2.0 1.0",
    "msgPutTotalTodayNow": "110",
    "msgPutTotalTodayMorning": "10",
    "commitLogDiskRatio": "0.5",
    "bootTimestamp": "1000",
    "transactionsPending": "2",
    "transactionsOldestPendingAgeMs": "60000",
    "requestsRefused": "7",
}


def script_of(brokers, groups=None):
    """A script of brokers by name with what they answer, and groups with (end, progress, time of the last) of each queue."""
    script = Scripted()
    core = admin(script)
    info = ClusterInfo({name: BrokerData("C", name, {0: name}) for name in brokers}, {"C": list(brokers)})
    script.on(GetBrokerClusterInfo, Reply(body=to_json(info)))
    script.on(GetBrokerRuntimeInfo, lambda seen: answer(brokers[seen.address], KVTable))
    script.on(GetRouteinfoByTopic, Reply(17))
    names = dict.fromkeys((*(groups or {}), "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"), SubscriptionGroupConfig())
    script.on(GetAllSubscriptiongroupConfig, Reply(body=to_json(SubscriptionGroupTable(subscription_group_table=names))))
    script.on(GetConsumeStats, lambda seen: answer(groups[seen.request.consumer_group], stats_of))
    return script, core


def answer(found, table):
    return found if isinstance(found, Exception | Reply) else Reply(body=to_json(table(found)))


def stats_of(queues):
    offsets = [OffsetWrapper(broker_offset=b, consumer_offset=c, last_timestamp=t) for b, c, t in queues]
    return ConsumeStats({MessageQueue("orders", "a", at): each for at, each in enumerate(offsets)})


def status_of(brokers, groups=None, **limits):
    script, core = script_of(brokers, groups)
    return script.run(status(core, StatusLimits(**limits)))


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
    ("limits", "words"),
    [
        ({}, None),
        ({"lag": 15}, None),
        ({"lag": 14}, "C_shop is 15 messages behind"),
        ({"pending_age_ms": 60_000}, None),
        ({"pending_age_ms": 59_999}, "a: a transaction has been pending for 1m00s"),
        ({"disk": 0.51}, None),
        ({"disk": 0.5}, "a: its disk is 50% full"),
    ],
)
def test_each_threshold(limits, words):
    status = status_of({"a": INFO}, {"C_shop": [(20, 10, 0), (5, 0, 0), (7, 7, 0)]}, **limits)
    assert status.faults == ([words] if words else [])
    assert status.health == ("degraded" if words else "healthy")


def test_a_group_is_behind_for_the_age_of_what_it_consumed_last_where_more_has_come():
    queues = {
        "C_none": [(5, 5, 1)],
        "C_late": [(5, 5, 1), (9, 5, 2_000), (9, 5, 3_000)],
        "C_new": [(9, 0, 0)],
        "C_gone": Reply(1),
    }
    status = status_of({"a": INFO}, queues)
    assert status.backlog["C_none"] == Backlog(0, None)
    assert status.backlog["C_late"] == Backlog(8, START_MS + 2 - 2_000), "two requests take a millisecond each"
    assert status.backlog["C_new"] == Backlog(9, None)
    assert "C_gone" not in status.backlog


def test_a_broker_that_does_not_answer_degrades_and_all_of_them_are_down():
    one = status_of({"a": INFO, "b": NetworkError("no route")})
    assert (one.health, one.faults) == ("degraded", ["b: does not answer: no route"])
    assert status_of({"b": NetworkError("no route")}).health == "down"


def test_what_a_broker_itself_finds_wrong_is_said_and_no_disk_besides():
    status = status_of({"a": {**INFO, "brokerFaults": "the disk is full", "commitLogDiskRatio": "0.99"}})
    assert status.faults == ["a: the disk is full"]


def test_groups_are_asked_for_side_by_side_but_not_all_at_once():
    names = [f"C_{number:03}" for number in range(SIDE_BY_SIDE + 1)]
    script, core = script_of({"a": INFO}, {name: [(2, 1, 0)] for name in names})
    assert script.run(backlogs(core)) == dict.fromkeys(names, Backlog(1, None))
    moments = [seen.at for seen in script.asked(GetConsumeStats)]
    assert sorted(map(moments.count, set(moments))) == [1, SIDE_BY_SIDE]


def test_only_the_groups_that_are_named_are_asked_for():
    script, core = script_of({"a": INFO}, {"C_one": [(2, 1, 0)], "C_two": [(2, 1, 0)]})
    assert script.run(backlogs(core, ["C_two"])) == {"C_two": Backlog(1, None)}
    assert script.asked(GetAllSubscriptiongroupConfig) == []


def test_a_broker_that_stops_answering_is_not_asked_for_every_group():
    names = [f"C_{number:03}" for number in range(3 * SIDE_BY_SIDE)]
    script, core = script_of({"a": INFO}, dict.fromkeys(names, NetworkError("no answer")))
    found = script.run(status(core))
    assert (found.health, found.faults) == ("down", ["no answer"])
    assert len(script.asked(GetConsumeStats)) == SIDE_BY_SIDE


def test_a_cluster_without_brokers_is_down():
    script, core = script_of({})
    for groups in (True, False):
        found = script.run(status(core, groups=groups))
        assert (found.health, found.faults) == ("down", ["no broker is known"])


def test_without_groups_only_brokers_are_asked():
    script, core = script_of({"a": INFO, "b": INFO}, {"C_shop": [(2, 1, 0)]})
    assert script.run(status(core, groups=False)).backlog == {}
    assert {type(seen.request) for seen in script.seen} == {GetBrokerClusterInfo, GetBrokerRuntimeInfo}
