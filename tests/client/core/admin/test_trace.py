"""A message's life where it is hard to tell: silent brokers, many topics and groups, ids that point elsewhere, Apache's brokers."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin import trace_find
from halfmoon.client.core.admin.resend import resend
from halfmoon.client.core.admin.trace import trace
from halfmoon.errors import ConnectFailed, GroupNotFound, NetworkError, QueryNotFound, UsageError
from halfmoon.model import StoredMessage
from halfmoon.wire.bodies import GroupList, SubscriptionGroupConfig, SubscriptionGroupTable, TopicList, to_json
from halfmoon.wire.headers.group import GetAllSubscriptiongroupConfig
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset
from halfmoon.wire.headers.pull import QueryMessage, QueryMessageReply, ViewMessageById
from halfmoon.wire.headers.route import GetAllTopicListFromNameserver
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2
from halfmoon.wire.headers.topic import QueryTopicConsumeByWho
from halfmoon.wire.ids import offset_msg_id, pack_host
from halfmoon.wire.properties import decode
from tests.client.core.admin.test_admin import admin
from tests.client.messages import message, record
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


def test_a_broker_that_does_not_answer_is_named():
    records = Records(dead=("broker-b:1",))
    records.add("orders")

    found = records.trace()

    assert [event.what for event in found.events] == ["born", "stored"]
    assert "what broker broker-b has: it did not answer" in found.not_told


def test_when_nobody_answers_that_is_an_error_and_not_an_empty_life():
    with pytest.raises(ConnectFailed):
        Records(dead=("broker-a:1", "broker-b:1")).trace()


def test_a_message_that_nobody_has_is_not_found():
    with pytest.raises(QueryNotFound):
        Records().trace()
    with pytest.raises(QueryNotFound, match="2 topics"):
        Records().trace(topic=None)


def test_its_topic_is_found_and_topics_of_groups_are_not_searched_for_it():
    records = Records()
    records.add("other")

    assert records.trace(topic=None).topic == "other"
    searched = [seen.request.topic for seen in records.script.asked(QueryMessage)]
    assert "%RETRY%C" not in searched


def test_more_topics_than_may_be_searched_want_the_topic_named(monkeypatch):
    monkeypatch.setattr(trace_find, "TOPICS_MAX", 1)

    with pytest.raises(UsageError, match="name the message's topic"):
        Records().trace(topic=None)


def test_no_more_than_some_groups_are_looked_at_and_that_is_said(monkeypatch):
    monkeypatch.setattr("halfmoon.client.core.admin.trace.GROUPS_MAX", 2)
    monkeypatch.setattr(trace_find, "GROUPS_MAX", 2)
    records = Records(groups=("C1", "C2", "C3"))
    records.add("orders")

    found = records.trace()

    assert [each.group for each in found.groups] == ["C1", "C2"]
    assert "only 2 groups of the topic are looked at" in found.not_told


def test_questions_are_asked_a_few_at_a_time():
    records = Records(groups=tuple(f"C{n}" for n in range(50)))
    records.add("orders")
    records.trace()

    at = [seen.at for seen in records.script.asked(QueryMessage)]
    assert max(at.count(moment) for moment in at) <= trace_find.SIDE_BY_SIDE


def test_an_id_that_names_no_broker_of_the_cluster_has_nobody_asked():
    records = Records()

    with pytest.raises(QueryNotFound):
        records.trace(offset_msg_id(pack_host("10.9.9.9:10911"), 4096), topic="orders")

    assert records.script.asked(ViewMessageById) == []


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

    found = records.trace()

    assert (found.topic, [each.group for each in found.groups]) == ("orders", ["C"])


# ---------------------------------------------------------------- resend


def sent(message_: StoredMessage, group: str | None = None):
    script = Records().script
    core = admin(script)
    known = SubscriptionGroupTable(subscription_group_table={"C": SubscriptionGroupConfig("C")})
    script.on(GetAllSubscriptiongroupConfig, Reply(body=to_json(known)))
    script.on(SendMessageV2, Reply(header=SendMessageReply(msg_id="7F00", queue_id=0, queue_offset=1)))
    assert script.run(resend(core, message_, group=group)) == "7F00"
    [seen] = script.asked(SendMessageV2)
    return seen, decode(seen.request.properties.encode())


def test_a_copy_goes_to_the_same_queue_and_is_neither_delayed_nor_half():
    properties = {"KEYS": "k", "own": "x", "DELAY": "3", "TRAN_MSG": "true", "REAL_TOPIC": "t", "RECONSUME_TIME": "2"}
    seen, found = sent(message(5, b"body", tag="A", **properties))

    assert (seen.address, seen.request.topic, seen.request.queue_id, seen.body) == ("10.0.0.2:10911", "orders", 0, b"body")
    assert found == {"UNIQ_KEY": "ID5", "KEYS": "k", "TAGS": "A", "own": "x", "ORIGIN_MESSAGE_ID": "OFFSETID"}


def test_a_copy_for_one_group_goes_to_its_retry_topic():
    seen, found = sent(message(5), "C")

    assert (seen.request.topic, found["RETRY_TOPIC"]) == ("%RETRY%C", "orders")


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "%RETRY%C", "%DLQ%C"])
def test_what_only_brokers_write_or_is_of_one_group_is_not_sent_again(topic):
    with pytest.raises(UsageError):
        sent(message(5, topic=topic))


def test_an_unknown_group_and_a_refusal_are_errors():
    with pytest.raises(GroupNotFound):
        sent(message(5), "nobody")
    script = Scripted()
    core = admin(script)
    script.on(SendMessageV2, REFUSED)
    with pytest.raises(NetworkError):
        script.run(resend(core, message(5)))
