"""The records of a message: which brokers and topics are searched for them, and how many at a time."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.trace import find
from halfmoon.errors import ConnectFailed, QueryNotFound, UsageError
from halfmoon.wire.bodies import TopicList, to_json
from halfmoon.wire.headers.pull import QueryMessage, ViewMessageById
from halfmoon.wire.headers.route import GetAllTopicListFromNameserver
from halfmoon.wire.ids import offset_msg_id, pack_host
from tests.client.core.admin.trace.test_trace import Records
from tests.client.scripted import Reply


def test_a_broker_that_does_not_answer_is_named():
    records = Records(dead=("broker-b:1",))
    records.add("orders")

    result = records.trace()

    assert [event.what for event in result.events] == ["born", "stored"]
    assert "what broker broker-b has: it did not answer" in result.not_reported


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


def test_more_topics_than_may_be_searched_want_the_topic_named():
    records = Records()
    names = [f"topic_{number}" for number in range(find.TOPICS_MAX + 1)]
    records.script.on(GetAllTopicListFromNameserver, Reply(body=to_json(TopicList(names))))

    with pytest.raises(UsageError, match="name the message's topic"):
        records.trace(topic=None)


def test_questions_are_asked_a_few_at_a_time():
    records = Records(groups=tuple(f"C{n}" for n in range(50)))
    records.add("orders")
    records.trace()

    at = [seen.at for seen in records.script.asked(QueryMessage)]
    assert max(at.count(moment) for moment in at) <= find.SIDE_BY_SIDE


def test_an_id_that_names_no_broker_of_the_cluster_has_nobody_asked():
    records = Records()

    with pytest.raises(QueryNotFound):
        records.trace(offset_msg_id(pack_host("10.9.9.9:10911"), 4096), topic="orders")

    assert records.script.asked(ViewMessageById) == []
