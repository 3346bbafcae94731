"""Requests about messages that wait for their time, as they travel."""

from __future__ import annotations

from halfmoon.wire.headers.delay import ListDelayedMessages, RecallMessage
from tests.wire.headers.fields import required, sent


def test_a_recall_needs_topic_and_handle():
    assert required(RecallMessage) == "topic recallHandle"
    assert sent(RecallMessage(topic="orders", recall_handle="h")) == {"topic": "orders", "recallHandle": "h"}


def test_a_list_of_delayed_messages_begins_at_the_first_unless_told_otherwise():
    assert sent(ListDelayedMessages()) == {"count": "100", "afterMs": "-1", "afterLevel": "-1", "afterOffset": "-1"}
