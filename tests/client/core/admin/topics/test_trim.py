"""Trims at all masters of a topic: all of them can, or none does."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.topics.trim import trim_topic
from halfmoon.errors import PartlyDone, RequestNotSupported, UsageError
from halfmoon.model import MessageQueue
from halfmoon.results import QueueTrim
from halfmoon.wire.bodies import TrimmedQueue, TrimmedQueues, to_json
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.topic import TrimTopic
from tests.client.core.admin.test_admin import admin
from tests.client.scripted import REFUSED, Reply, Scripted, route

TRIMMED = Reply(body=to_json(TrimmedQueues([TrimmedQueue(0, 1, 5)])))


def test_each_master_of_the_topic_trims_its_queues():
    script = Scripted()
    core = admin(script)
    script.on(TrimTopic, TRIMMED)

    found = script.run(trim_topic(core, "orders", before_ms=7, dry_run=True))

    assert found == [QueueTrim(MessageQueue("orders", f"broker-{name}", 0), 1, 5) for name in "ab"]
    assert [(seen.request.before_ms, seen.request.dry_run) for seen in script.asked(TrimTopic)] == [(7, True)] * 2


def test_queues_are_asked_for_at_their_broker():
    script = Scripted()
    core = admin(script)
    script.on(TrimTopic, TRIMMED)

    script.run(trim_topic(core, "orders", offset=5, queues=[MessageQueue("orders", "broker-b", 3)], dry_run=True))

    assert [(seen.address, seen.request.queue_id) for seen in script.asked(TrimTopic)] == [("broker-b:1", 3)]


def test_nothing_is_trimmed_where_one_broker_cannot():
    script = Scripted()
    core = admin(script)
    script.on(TrimTopic, lambda seen: Reply(3, remark="not supported") if seen.address == "broker-b:1" else TRIMMED)

    with pytest.raises(RequestNotSupported, match="broker broker-b cannot trim topics"):
        script.run(trim_topic(core, "orders", offset=5))
    assert all(seen.request.dry_run for seen in script.asked(TrimTopic))


@pytest.mark.parametrize("how", [{}, {"offset": 1, "before_ms": 1}])
def test_an_offset_or_a_time_is_given(how):
    script = Scripted()

    with pytest.raises(UsageError, match="give before_ms or offset"):
        script.run(trim_topic(admin(script), "orders", **how))


def test_a_trim_that_one_broker_fails_says_what_the_others_trimmed_and_may_be_repeated():
    script = Scripted()
    core = admin(script)
    failing = ["broker-b:1"]
    script.on(TrimTopic, lambda seen: REFUSED if not seen.request.dry_run and seen.address in failing else TRIMMED)

    with pytest.raises(PartlyDone, match="done at broker-a, but not at broker-b: connect failed") as caught:
        script.run(trim_topic(core, "orders", offset=5))
    assert caught.value.done == {"broker-a": [QueueTrim(MessageQueue("orders", "broker-a", 0), 1, 5)]}
    failing.clear()
    assert len(script.run(trim_topic(core, "orders", offset=5))) == 2


def test_a_route_that_changes_between_two_questions_is_asked_for_once():
    script = Scripted()
    core = admin(script)
    script.on(TrimTopic, TRIMMED)
    answers = [route({"broker-a": 1}), route({"broker-b": 1})]
    script.on(GetRouteinfoByTopic, lambda seen: Reply(body=to_json(answers.pop(0))))

    assert [trim.queue.broker_name for trim in script.run(trim_topic(core, "orders", offset=5))] == ["broker-a"]


def test_a_queue_of_a_broker_that_does_not_hold_the_topic_is_refused():
    script = Scripted()

    with pytest.raises(UsageError, match="has no queue broker-z/0"):
        script.run(trim_topic(admin(script), "orders", offset=5, queues=[MessageQueue("orders", "broker-z", 0)]))
