"""Requests about topics, as they travel."""

from __future__ import annotations

from halfmoon.wire.headers import topic
from tests.wire.headers.fields import required, sent


def test_a_topic_is_made_with_its_queues_and_its_permission():
    assert required(topic.UpdateAndCreateTopic) == "topic readQueueNums writeQueueNums perm topicFilterType"
    header = topic.UpdateAndCreateTopic(
        topic="orders", read_queue_nums=8, write_queue_nums=4, perm=6, topic_filter_type="SINGLE_TAG"
    )
    assert sent(header) == {
        "topic": "orders", "readQueueNums": "8", "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }  # fmt: skip


def test_a_broker_asks_for_the_version_by_what_names_it():
    assert required(topic.QueryDataVersion) == ""
    assert sent(topic.QueryDataVersionReply(changed=True)) == {"changed": "true"}
