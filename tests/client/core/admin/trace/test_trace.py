"""A message's life where it is hard to tell: silent brokers, many topics and groups, ids that point elsewhere, Apache's brokers."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.trace import find
from halfmoon.client.core.admin.trace.trace import trace
from halfmoon.wire.bodies import GroupList, SubscriptionGroupConfig, SubscriptionGroupTable, TopicList, to_json
from halfmoon.wire.headers.group import GetAllSubscriptiongroupConfig
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset
from halfmoon.wire.headers.pull import QueryMessage, QueryMessageReply
from halfmoon.wire.headers.route import GetAllTopicListFromNameserver
from halfmoon.wire.headers.topic import QueryTopicConsumeByWho
from tests.client.core.admin.test_admin import admin
from tests.client.messages import record
from tests.client.scripted import REFUSED, Reply, Scripted

TRACE = "RMQ_SYS_TRACE_TOPIC"


class Records:
    """What the brokers have, by topic; ``dead`` are those that do not answer."""

    def __init__(self, groups: tuple[str, ...] = (), dead: tuple[str, ...] = ()) -> None:
        self.script = Scripted()
        self.core = admin(self.script)
        self.by_topic: dict[str, list[bytes]] = {}
        self.dead = dead
        self.offset = 0
        self.script.on(QueryMessage, self._query)
        self.script.on(QueryTopicConsumeByWho, self._alive(Reply(body=to_json(GroupList(list(groups))))))
        self.script.on(GetAllTopicListFromNameserver, Reply(body=to_json(TopicList(["orders", "other", "%RETRY%C"]))))
        self.script.on(QueryConsumerOffset, lambda seen: Reply(header=OffsetReply(offset=self.offset)))
        known = SubscriptionGroupTable(subscription_group_table={"C": SubscriptionGroupConfig("C")})
        self.script.on(GetAllSubscriptiongroupConfig, Reply(body=to_json(known)))

    def add(self, topic: str, offset: int = 0, **properties: str) -> None:
        """Put a record with the id ID0 into a topic."""
        self.by_topic.setdefault(topic, []).append(record(offset, topic=topic, **{"UNIQ_KEY": "ID0", **properties}))

    def _alive(self, reply):
        return lambda seen: REFUSED if seen.address in self.dead else reply

    def _query(self, seen):
        if seen.address in self.dead:
            return REFUSED
        header = QueryMessageReply(index_last_update_timestamp=0, index_last_update_phyoffset=0)
        found = self.by_topic.get(seen.request.topic, []) if seen.address == "broker-a:1" else []
        return Reply(0, header, b"".join(found)) if found else Reply(22, header)

    def trace(self, name: str = "ID0", topic: str | None = "orders"):
        """Return the life."""
        return self.script.run(trace(self.core, name, topic, trace_topic=TRACE))


def test_no_more_than_some_groups_are_looked_at_and_that_is_said():
    names = tuple(f"C{number:03}" for number in range(find.GROUPS_MAX + 1))
    records = Records(groups=names)
    records.add("orders")

    life = records.trace()

    assert [group.group for group in life.groups] == list(names[:-1])
    assert f"only {find.GROUPS_MAX} groups of the topic are looked at" in life.not_reported


@pytest.mark.parametrize(
    ("retries", "parked", "dead", "offset", "state"),
    [
        (0, 0, 0, 0, "waits"),
        (0, 0, 0, 1, "consumed"),
        (0, 1, 0, 1, "waits again"),
        (1, 1, 0, 0, "waits again"),
        (1, 1, 0, 1, "consumed"),
        (1, 2, 0, 1, "waits again"),
        (2, 2, 1, 1, "dead letter"),
    ],
)
def test_how_far_a_group_is(retries, parked, dead, offset, state):
    records = Records(groups=("C",))
    records.add("orders")
    for _ in range(retries):
        records.add("%RETRY%C", RETRY_TOPIC="orders")
    for _ in range(parked):
        records.add("SCHEDULE_TOPIC_XXXX", REAL_TOPIC="%RETRY%C", RETRY_TOPIC="orders")
    for _ in range(dead):
        records.add("%DLQ%C")
    records.offset = offset

    [group] = records.trace().groups

    assert (group.state, group.retries) == (state, max(retries, parked))


@pytest.mark.parametrize(
    ("properties", "detail"),
    [
        ({"DELAY": "3"}, "level 3"),
        ({"TIMER_OUT_MS": "1700000000000"}, "until 2023-11-14T22:13:20.000Z"),
        ({"TIMER_OUT_MS": "4102444800000"}, "until 2100-01-01T00:00:00.000Z"),
        ({"TIMER_OUT_MS": "9" * 30}, "until " + "9" * 20),
        ({"TIMER_OUT_MS": "soon"}, "until soon"),
        ({}, ""),
    ],
)
def test_until_when_a_message_waits_is_told(properties, detail):
    records = Records()
    records.add("rmq_sys_wheel_timer", REAL_TOPIC="orders", **properties)

    [event] = [event for event in records.trace(topic=None).events if event.what == "delayed"]

    assert event.detail == detail


def test_a_group_without_progress_has_not_begun():
    records = Records(groups=("C",))
    records.add("orders")
    records.script.on(QueryConsumerOffset, Reply(22))

    assert [group.state for group in records.trace().groups] == ["not begun"]


def test_a_namespace_is_taken_off_names():
    records = Records(groups=("N%C",))
    records.core = admin(records.script, namespace="N")
    records.add("N%orders")

    result = records.trace()

    assert (result.topic, [each.group for each in result.groups]) == ("orders", ["C"])


# ---------------------------------------------------------------- resend
