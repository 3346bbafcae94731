"""Facts about a group: what waits, and what is not reported is not counted as nothing."""

from __future__ import annotations

from halfmoon.client.core.admin.health.facts import GroupFacts, queues_text
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import OffsetWrapper

ONE, RETRY = MessageQueue("orders", "broker-a", 0), MessageQueue("%RETRY%C", "broker-a", 0)
QUEUES = {ONE: OffsetWrapper(10, 4, unmoved_ms=7), RETRY: OffsetWrapper(3, 1, unmoved_ms=9)}


def test_redelivery_is_what_is_in_the_retry_topic_and_what_is_delayed_on_its_way():
    known = GroupFacts(queues=QUEUES, delayed=5)
    assert (known.lag(), known.retries(), known.redelivery()) == (8, 2, 7)
    known.delayed = None
    assert known.redelivery() is None


def test_progress_stands_still_for_the_longest_time_unless_one_queue_does_not_report_it():
    assert GroupFacts(queues=QUEUES).unmoved_ms() == 9
    assert GroupFacts(queues={**QUEUES, ONE: OffsetWrapper(10, 4)}).unmoved_ms() is None
    assert GroupFacts(queues={ONE: OffsetWrapper(4, 4)}).unmoved_ms() == 0


def test_one_queue_has_its_name_and_several_are_counted():
    assert queues_text([ONE]) == "queue 0 of orders at broker-a"
    assert queues_text([ONE, RETRY]) == "2 queues (%RETRY%C broker-a/0, orders broker-a/0)"
