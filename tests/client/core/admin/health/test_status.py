"""What brokers say, read carefully, and when that counts as degraded or down."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.health.group import SIDE_BY_SIDE, backlogs
from halfmoon.client.core.admin.health.status import status
from halfmoon.errors import ACCESS_REFUSED, NetworkError
from halfmoon.model import MessageQueue
from halfmoon.results import Backlog, StatusLimits
from halfmoon.wire.bodies import (
    BrokerData,
    ClientConnection,
    ClusterInfo,
    ConsumerConnection,
    ConsumeStats,
    GroupTransactions,
    KVTable,
    OffsetWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicList,
    TopicOffset,
    TopicStatsTable,
    TransactionStats,
    to_json,
)  # fmt: skip
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.client import GetConsumerConnectionList, GetConsumerRunningInfo
from halfmoon.wire.headers.group import GetAllSubscriptiongroupConfig, GetConsumeStats
from halfmoon.wire.headers.route import GetAllTopicListFromNameserver, GetBrokerClusterInfo, GetRouteinfoByTopic
from halfmoon.wire.headers.topic import GetTopicStatsInfo
from halfmoon.wire.headers.transaction import GetTransactionStats
from tests.client.core.admin.test_admin import admin
from tests.client.scripted import START_MS, Reply, Scripted, route, routes

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


def script_of(brokers, groups=None, members=0):
    """A script of brokers by name with what they answer, and groups with (end, progress, time of the last) of each queue.

    A fourth number is for how long the progress stands still, as only our brokers report it.
    """
    script = Scripted()
    core = admin(script)
    info = ClusterInfo({name: BrokerData("C", name, {0: name}) for name in brokers}, {"C": list(brokers)})
    script.on(GetBrokerClusterInfo, Reply(body=to_json(info)))
    script.on(GetBrokerRuntimeInfo, lambda seen: answer(brokers[seen.address], KVTable))
    script.on(GetRouteinfoByTopic, Reply(17))
    online = ConsumerConnection([ClientConnection(f"client-{number}") for number in range(members)])
    script.on(GetConsumerConnectionList, Reply(body=to_json(online)) if members else Reply(206))
    script.on(GetAllTopicListFromNameserver, Reply(body=to_json(TopicList())))
    names = dict.fromkeys((*(groups or {}), "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"), SubscriptionGroupConfig())
    script.on(GetAllSubscriptiongroupConfig, Reply(body=to_json(SubscriptionGroupTable(subscription_group_table=names))))
    script.on(GetConsumeStats, lambda seen: answer(groups[seen.request.consumer_group], stats_of))
    return script, core


def answer(found, table):
    return found if isinstance(found, Exception | Reply) else Reply(body=to_json(table(found)))


def stats_of(queues):
    names = ("broker_offset", "consumer_offset", "last_timestamp", "unmoved_ms")
    offsets = [OffsetWrapper(**dict(zip(names, values))) for values in queues]
    return ConsumeStats({MessageQueue("orders", "a", at): each for at, each in enumerate(offsets)})


def status_of(brokers, groups=None, members=0, **limits):
    script, core = script_of(brokers, groups, members)
    return script.run(status(core, StatusLimits(**limits)))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({}, None),
        ({"lag": 15}, None),
        ({"lag": 14}, "C_shop: 15 messages behind"),
        ({"pending_age_ms": 60_000}, None),
        ({"pending_age_ms": 59_999}, "a: a transaction has been pending for 1m00s"),
        ({"disk": 0.51}, None),
        ({"disk": 0.5}, "a: its disk is 50% full"),
    ],
)
def test_each_threshold(limits, words):
    status = status_of({"a": INFO}, {"C_shop": [(20, 10, 0), (5, 0, 0), (7, 7, 0)]}, members=1, **limits)
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
    assert status.backlog["C_none"] == Backlog(0, None, None, 0)
    assert status.backlog["C_late"] == Backlog(8, START_MS + 4 - 2_000, None, 0), "four requests take a millisecond each"
    assert status.backlog["C_new"] == Backlog(9, None, None, 0)
    assert "C_gone" not in status.backlog


def test_a_broker_that_does_not_answer_degrades_and_all_of_them_are_down():
    one = status_of({"a": INFO, "b": NetworkError("no route")})
    assert (one.health, one.faults) == ("degraded", ["b: does not answer: no route"])
    assert status_of({"b": NetworkError("no route")}).health == "down"


NO_ACCOUNT = Reply(1, remark=f"{ACCESS_REFUSED}No accessKey is configured, org.apache.X.java:1")


@pytest.mark.parametrize(
    ("brokers", "health", "state", "words"),
    [
        ({"b": NO_ACCOUNT}, "no access", "no access", "b: no access: b requires an account: access_key= and secret_key= in Python"),
        ({"b": NO_ACCOUNT, "c": NetworkError("no route")}, "no access", "no access", "b: no access: b requires an account"),
        ({"b": NO_ACCOUNT, "a": INFO}, "degraded", "no access", "b: no access: b requires an account"),
        ({"b": Reply(2, remark="busy")}, "degraded", "refuses", "b: refuses to report: busy (code 2 SYSTEM_BUSY)"),
        ({"b": NetworkError("no route")}, "down", "no answer", "b: does not answer: no route"),
    ],
)
def test_a_broker_that_refuses_is_not_called_down(brokers, health, state, words):
    found = status_of(brokers)

    assert (found.health, {broker.name: broker.state for broker in found.brokers}["b"]) == (health, state)
    assert any(fault.startswith(words) for fault in found.faults), found.faults
    assert not any("org.apache" in fault for fault in found.faults)


def test_a_name_server_that_refuses_is_not_called_down():
    script, core = script_of({"a": INFO})
    script.on(GetBrokerClusterInfo, NO_ACCOUNT)
    script.on(GetBrokerRuntimeInfo, Reply(3))

    found = script.run(status(core))

    assert found.health == "no access"
    assert "requires an account" in found.faults[0]


def test_groups_that_an_account_may_not_list_are_not_reported_and_the_brokers_are():
    script, core = script_of({"a": INFO}, {"C_shop": [(9, 0, 0)]})
    script.on(GetAllSubscriptiongroupConfig, NO_ACCOUNT)

    found = script.run(status(core))

    assert (found.health, [broker.state for broker in found.brokers]) == ("degraded", ["reports"])
    assert found.faults[0].startswith("not reported: a: a requires an account")


@pytest.mark.parametrize(
    ("days", "severity", "words"),
    [
        (15, None, ""),
        (13, "warning", "a: its certificate expires in 13d00h"),
        (-2, "blocked", "a: its certificate expired 2d00h ago, and clients refuse it"),
    ],
)
def test_a_certificate_that_ends_soon_degrades_the_cluster(days, severity, words):
    status = status_of({"a": {**INFO, "tlsCertificateExpires": str(START_MS + days * 86_400_000)}})
    assert [(finding.kind, finding.severity, finding.what) for finding in status.findings] == (
        [("certificate", severity, words)] if severity else []
    )
    assert status.health == ("degraded" if severity else "healthy")


def test_what_a_broker_itself_finds_wrong_is_said_and_no_disk_besides():
    status = status_of({"a": {**INFO, "brokerFaults": "the disk is full", "commitLogDiskRatio": "0.99"}})
    assert status.faults == ["a: the disk is full"]


def test_groups_are_asked_for_side_by_side_but_not_all_at_once():
    names = [f"C_{number:03}" for number in range(SIDE_BY_SIDE + 1)]
    script, core = script_of({"a": INFO}, {name: [(2, 1, 0)] for name in names})
    assert script.run(backlogs(core)) == dict.fromkeys(names, Backlog(1, None, None, 0))
    moments = [seen.at for seen in script.asked(GetConsumeStats)]
    assert sorted(map(moments.count, set(moments))) == [1, SIDE_BY_SIDE]


def test_only_the_groups_that_are_named_are_asked_for():
    script, core = script_of({"a": INFO}, {"C_one": [(2, 1, 0)], "C_two": [(2, 1, 0)]})
    assert script.run(backlogs(core, ["C_two"])) == {"C_two": Backlog(1, None, None, 0)}
    assert script.asked(GetAllSubscriptiongroupConfig) == []


def test_a_broker_that_stops_answering_is_not_asked_for_every_group():
    names = [f"C_{number:03}" for number in range(3 * SIDE_BY_SIDE)]
    script, core = script_of({"a": INFO}, dict.fromkeys(names, NetworkError("no answer")))
    found = script.run(status(core))
    assert (found.health, found.faults) == ("degraded", ["not reported: groups: no answer"])
    assert len(script.asked(GetConsumeStats)) == SIDE_BY_SIDE


def test_a_cluster_without_brokers_is_down():
    script, core = script_of({})
    for groups in (True, False):
        found = script.run(status(core, groups=groups))
        assert (found.health, found.faults) == ("down", ["no broker is registered with the name server"])


def test_without_groups_only_brokers_are_asked():
    script, core = script_of({"a": INFO, "b": INFO}, {"C_shop": [(2, 1, 0)]})
    assert script.run(status(core, groups=False)).backlog == {}
    assert {type(seen.request) for seen in script.seen} == {GetBrokerClusterInfo, GetBrokerRuntimeInfo}


def faults(groups, members=0, **limits):
    found = status_of({"a": INFO}, groups, members, **limits)
    assert found.health == ("degraded" if found.faults else "healthy")
    return found.faults


def test_a_group_without_members_degrades_the_cluster_once_messages_have_waited_for_it():
    behind = {"C_shop": [(20, 10, 0, 300_000), (5, 5, 0, None)]}
    assert faults(behind) == ["C_shop: no member is online, and 10 messages wait"]
    assert faults(behind, memberless_ms=300_001) == []
    assert faults({"C_shop": [(5, 5, 0, None)]}) == []
    assert faults({"C_shop": [(20, 10, 0)]}) == ["C_shop: no member is online, and 10 messages wait"], "nobody says for how long"


def test_a_queue_whose_progress_stands_still_degrades_the_cluster():
    late = {"C_shop": [(20, 10, 0, 240_000)]}
    assert faults(late, members=1) == [
        "C_shop: queue 0 of orders at a is stuck at offset 10 for 4m00s: no member reports why",
    ]
    assert faults(late, members=1, stuck_ms=240_001) == []


def test_members_are_asked_only_where_progress_stands_still_or_the_broker_does_not_report_it():
    for unmoved, asked in (((1_999,), 0), ((2_000,), 1), ((), 1)):
        script, core = script_of({"a": INFO}, {"C_shop": [(20, 10, 0, *unmoved)], "C_done": [(5, 5, 0)]}, members=1)
        script.run(status(core))
        assert len(script.asked(GetConsumerRunningInfo)) == asked


def test_a_transaction_that_no_producer_can_be_asked_about_degrades_the_cluster():
    groups = [
        GroupTransactions("P_gone", 2, 100_000, 0),
        GroupTransactions("P_here", 1, 0, 1),
        GroupTransactions("P_new", 1, 399_000, 0),
    ]
    script, core = script_of({"a": {**INFO, "transactionsOldestPendingAgeMs": "300000"}})
    script.on(GetTransactionStats, Reply(body=to_json(TransactionStats(now_ms=400_000, groups=groups))))

    assert script.run(status(core)).faults == [
        "a: 2 transactions are undecided for up to 5m00s, and producer group P_gone has no member online"
    ]
    assert script.run(status(core, StatusLimits(undecidable_ms=300_001))).faults == []


def test_a_list_of_topics_that_makes_no_sense_hides_the_dead_letters_alone_and_is_said():
    script, core = script_of({"a": INFO})
    script.on(GetAllTopicListFromNameserver, Reply(body=b"{"))
    found = script.run(status(core))

    assert found.health == "degraded"
    assert [fault.partition(": ")[0] for fault in found.faults] == ["not reported"]
    assert found.faults[0].startswith("not reported: dead letters: ")
    assert [broker.name for broker in found.brokers] == ["a"]


def test_dead_letters_are_noted_and_degrade_nothing():
    script, core = script_of({"a": INFO})
    script.on(GetAllTopicListFromNameserver, Reply(body=to_json(TopicList(["orders", "%DLQ%C_shop", "%DLQ%C_none"]))))
    script.on(GetRouteinfoByTopic, routes(**{"%DLQ%C_shop": route(1), "%DLQ%C_none": route(1)}))
    ends = {"%DLQ%C_shop": TopicOffset(1, 4), "%DLQ%C_none": TopicOffset(0, 0)}

    def ends_of(seen):
        topic = seen.request.topic
        return Reply(body=to_json(TopicStatsTable({MessageQueue(topic, "broker-a", 0): ends[topic]})))

    script.on(GetTopicStatsInfo, ends_of)
    found = script.run(status(core))

    assert (found.health, found.faults) == ("healthy", [])
    assert [(one.kind, one.group, one.what) for one in found.findings] == [
        ("dead-letters", "C_shop", "3 messages went to the dead letters.")
    ]


def test_messages_that_are_delayed_until_their_redelivery_are_behind():
    script, core = script_of({"a": INFO}, {"C_shop": [(5, 5, 0)]})
    script.on(GetConsumeStats, Reply(body=to_json(ConsumeStats({MessageQueue("orders", "a", 0): OffsetWrapper(5, 5)}, 0.0, 2))))
    assert script.run(backlogs(core)) == {"C_shop": Backlog(2, None, 2, 0)}


@pytest.mark.parametrize(
    ("unmoved_ms", "faults"),
    [
        (299_999, []),
        (300_000, ["C_shop: no member is online, and 2 messages wait to be delivered again"]),
        (None, ["C_shop: no member is online, and 2 messages wait to be delivered again"]),
    ],
)
def test_a_group_without_members_whose_messages_all_await_redelivery_degrades_the_cluster(unmoved_ms, faults):
    script, core = script_of({"a": INFO}, {"C_shop": [(5, 5, 0)]})
    queues = {
        MessageQueue("orders", "a", 0): OffsetWrapper(5, 5, unmoved_ms=unmoved_ms),
        MessageQueue("orders", "a", 1): OffsetWrapper(5, 5, unmoved_ms=None if unmoved_ms is None else 900_000),
    }
    script.on(GetConsumeStats, Reply(body=to_json(ConsumeStats(queues, 0.0, 2))))

    assert script.run(status(core)).faults == faults
