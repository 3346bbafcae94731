"""Requests about consumer groups, as they travel."""

from __future__ import annotations

from halfmoon.wire.headers.group import DeleteSubscriptiongroup, GetBrokerConsumeStats, GetConsumeStats
from tests.wire.headers.fields import required, sent


def test_progress_is_asked_for_by_group_and_perhaps_by_topic():
    assert required(GetConsumeStats) == "consumerGroup"
    assert sent(GetConsumeStats(consumer_group="C", topic="orders")) == {"consumerGroup": "C", "topic": "orders"}
    assert sent(GetBrokerConsumeStats()) == {"isOrder": "false"}


def test_a_group_s_progress_goes_with_it_under_the_name_of_4_9_and_of_5():
    header = DeleteSubscriptiongroup(group_name="C", remove_offset=True, clean_offset=True)
    assert sent(header) == {"groupName": "C", "removeOffset": "true", "cleanOffset": "true"}
