"""What blocks a group is said in sentences, from what brokers and members say, and nothing is said where nothing is known."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.client.core.admin.health.findings import GroupFacts, findings
from halfmoon.errors import RequestTimeout
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import ConsumeFigures, ConsumerRunningInfo, OffsetWrapper, ProcessQueueInfo, SubscriptionData

NOW = 1_800_000_000_000
ONE, TWO = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
LATE, DONE = OffsetWrapper(broker_offset=10, consumer_offset=4), OffsetWrapper(broker_offset=10, consumer_offset=10)
BUSY = ProcessQueueInfo(
    cached_msg_count=6, cached_msg_min_offset=4, cached_msg_max_offset=9, last_consume_timestamp=NOW - 10, last_pull_timestamp=NOW
)


def member(expression: str = "*", *, properties: dict[str, str] | None = None, **held: Any) -> ConsumerRunningInfo:
    queue = held.pop("queue", ONE)
    fields = {name: getattr(BUSY, name) for name in BUSY.__struct_fields__} | held
    return ConsumerRunningInfo(
        properties=properties or {},
        subscription_set=[SubscriptionData(topic="orders", sub_string=expression)],
        mq_table={queue: ProcessQueueInfo(**fields)},
    )


def said(known: GroupFacts) -> list[tuple[bool, str]]:
    found = findings(known, NOW)
    assert all(finding.what.endswith(".") and finding.do.endswith(".") for finding in found)
    return [(finding.severity == "blocked", finding.what) for finding in found]


def group(infos: dict[str, Any], queues: dict[MessageQueue, Any] | None = None, **values: Any) -> GroupFacts:
    return GroupFacts(
        members=list(infos), infos=infos, queues={ONE: LATE} if queues is None else queues, model="clustering", **values
    )


def test_a_group_whose_members_consume_is_blocked_by_nothing():
    assert said(group({"a": member()})) == []


@pytest.mark.parametrize(
    ("queues", "what"),
    [
        ({ONE: LATE}, (True, "No member is online, and 6 messages wait.")),
        ({ONE: OffsetWrapper(broker_offset=5, consumer_offset=4)}, (True, "No member is online, and 1 message waits.")),
        ({ONE: DONE}, (False, "No member is online, and nothing waits.")),
        ({}, (False, "No member is online, and the group has never consumed.")),
    ],
)
def test_a_group_without_members_blocks_only_where_messages_wait(queues, what):
    assert said(GroupFacts(queues=queues)) == [what]


def test_a_member_that_neither_begins_nor_ends_a_message_is_stuck_on_its_oldest():
    [finding] = findings(group({"a": member(last_consume_timestamp=NOW - 300_000)}), NOW)

    assert finding.what == "Member a has 6 messages of queue 0 of orders at broker-a in process, and none began or ended for 5m00s."
    assert (finding.severity, finding.queue, finding.offset) == ("blocked", ONE, 4)


def test_a_member_that_has_just_started_is_not_stuck_before_its_first_message():
    started = {"PROP_CONSUMER_START_TIMESTAMP": str(NOW - 1_000)}

    assert said(group({"a": member(last_consume_timestamp=0, properties=started)})) == []
    started["PROP_CONSUMER_START_TIMESTAMP"] = str(NOW - 60_000)
    assert "for 1m00s" in said(group({"a": member(last_consume_timestamp=0, properties=started)}))[0][1]


def test_one_message_that_hangs_while_others_go_on_is_seen_by_what_is_done_behind_it():
    [finding] = findings(group({"a": member(cached_msg_max_offset=509)}), NOW)

    assert finding.what == "Member a has 6 messages of queue 0 of orders at broker-a in process, and 500 later ones are done."
    assert finding.offset == 4


def test_a_filter_leaves_offsets_out_so_that_nothing_follows_from_them():
    assert said(group({"a": member("tag", cached_msg_max_offset=509)})) == []


@pytest.mark.parametrize(
    ("held", "what"),
    [
        ({"droped": True}, "Member a is giving up queue 0 of orders at broker-a."),
        (
            {"properties": {"PROP_CONSUMEORDERLY": "true"}},
            "Member a consumes in order and has no lock of queue 0 of orders at broker-a.",
        ),
        (
            {"cached_msg_count": 0, "last_pull_timestamp": NOW - 200_000},
            "Member a has not pulled for 2m00s from queue 0 of orders at broker-a.",
        ),
    ],
)
def test_a_queue_that_is_held_and_not_consumed_says_why(held, what):
    assert said(group({"a": member(**held)})) == [(True, what)]
    assert said(group({"a": member(**held)}, {ONE: DONE})) == []


def test_a_lock_is_not_missed_where_there_is_one():
    assert said(group({"a": member(locked=True, properties={"PROP_CONSUMEORDERLY": "true"})})) == []


def test_a_queue_that_nobody_holds_is_named_when_every_member_said_what_it_holds():
    late = {ONE: LATE, TWO: LATE}

    assert said(group({"a": member()}, late)) == [(True, "No member holds queue 1 of orders at broker-a, where 6 messages wait.")]
    assert said(group({"a": member(), "b": RequestTimeout("no answer")}, late)) == [
        (False, "Member b does not say how it is: no answer.")
    ]
    known = group({"a": member()}, late)
    known.members.append("not asked")
    assert said(known) == []
    assert said(group({"a": member(properties={"PROP_CONSUME_TYPE": "CONSUME_POP"})}, late)) == []


def test_a_group_that_broadcasts_says_that_brokers_know_no_lag():
    known = group({"a": member()}, {})
    known.model = "broadcasting"

    [(blocks, what)] = said(known)
    assert not blocks
    assert what.startswith("The group broadcasts")


def test_members_that_subscribe_differently_are_named_with_what_they_want():
    known = group({"a": member(), "b": member(), "c": member("paid", queue=TWO)})

    assert said(known) == [(True, "Members subscribe differently. a, b: orders *; c: orders paid.")]


def test_many_queues_are_counted_beyond_the_first_five():
    queues = {MessageQueue("orders", "broker-a", number): LATE for number in range(8)}

    [(_, what)] = said(group({"a": ConsumerRunningInfo()}, queues))
    assert what == (
        "No member holds 8 queues (orders broker-a/0, orders broker-a/1, orders broker-a/2, orders broker-a/3, orders broker-a/4, "
        "3 more), where 48 messages wait."
    )


def test_what_blocks_stands_before_failures_retries_and_dead_letters():
    info = member()
    info.status_table = {"orders": ConsumeFigures(consume_failed_msgs=3)}
    retry = MessageQueue("%RETRY%C", "broker-a", 0)
    info.mq_table[retry] = BUSY

    assert said(
        group({"a": info}, {ONE: LATE, retry: LATE}, dead_letters=1, unreadable=["orders at broker-a"], disabled=["broker-b"])
    ) == [
        (True, "Broker broker-b does not let this group consume: consumeEnable is false."),
        (True, "Topic orders at broker-a may not be read: its permission lacks 4."),
        (False, "6 messages wait to be delivered again."),
        (False, "3 deliveries failed in the last hour."),
        (False, "1 message went to the dead letters."),
    ]
