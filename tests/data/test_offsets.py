"""Where reading begins and ends: keywords, offsets, a group's progress, times; and what does not fit what is there."""

from __future__ import annotations

from typing import Any, cast

import pytest

from halfmoon.client.ranges import Ranges
from halfmoon.data.offsets import available_bounds, end_offsets, start_offsets, topic_names
from halfmoon.errors import NoPermission, UsageError
from halfmoon.model import MessageQueue
from halfmoon.spark.source.options import SourceOptions, source_options

BOUNDS = {("broker-a", 0): (10, 20), ("broker-a", 1): (0, 5)}
QUEUES = [MessageQueue("orders", "broker-a", number) for number in (0, 1)]


class Brokers:
    """Answers as `Ranges` does for one cluster."""

    def topics(self) -> list[str]:
        own = ["broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "TBW102", "rmq_sys_wheel_timer"]
        return ["orders", "refunds", "%RETRY%C_shop", "closed", *own]

    def own_topics(self) -> list[str]:
        return ["DefaultCluster", "broker-a"]

    def bounds(self, topic: str, *, partial: bool) -> dict[tuple[str, int], tuple[int, int]]:
        return {} if topic == "closed" else BOUNDS

    def absent(self, topic: str) -> tuple[str, ...]:
        return ()

    def committed(self, group: str, topic: str) -> dict[tuple[str, int], int]:
        return {("broker-a", 0): 15}

    def offsets_at(self, topic: str, at_ms: int, bounds: dict[tuple[str, int], tuple[int, int]]) -> dict[tuple[str, int], int]:
        return {queue: min(high, low + at_ms) for queue, (low, high) in bounds.items()}


CLIENT = cast(Ranges, Brokers())


def options(**given: Any) -> SourceOptions:
    """Return the options of a batch of the topic orders."""
    return source_options({"endpoints": "x:1", **({} if "assign" in given else {"topic": "orders"}), **given}, "batch")


def starts(**given: Any) -> list[int]:
    """Return where both queues begin."""
    read = options(**given)
    return list(start_offsets(read, CLIENT, available_bounds(read, CLIENT), "earliest").values())


def ends(**given: Any) -> list[int]:
    """Return where both queues end."""
    read = options(**given)
    return list(end_offsets(read, CLIENT, available_bounds(read, CLIENT)).values())


def given(first: int, second: int) -> str:
    """Return offsets of both queues as an option."""
    return f'{{"orders": {{"broker-a": {{"0": {first}, "1": {second}}}}}}}'


def test_a_pattern_means_topics_of_users_unless_it_is_like_the_name_of_another():
    def matching(pattern: str) -> list[str]:
        return topic_names(source_options({"endpoints": "x:1", "topicPattern": pattern}, "batch"), CLIENT)

    assert matching(".*s") == ["orders", "refunds"]
    assert matching(".*") == ["closed", "orders", "refunds"]
    assert matching("%RETRY%.*") == ["%RETRY%C_shop"]
    assert matching("broker-a") == ["broker-a"]


def test_reading_begins_where_keyword_offsets_group_or_time_say():
    assert starts() == [10, 0]
    assert starts(startingOffsets=given(12, -1)) == [12, 5]
    assert starts(startingOffsets="group", consumerGroup="C") == [15, 0]
    assert starts(startingTimestamp="3") == [13, 3]


def test_reading_ends_at_the_newest_message_at_offsets_or_at_a_time():
    assert ends() == [20, 5]
    assert ends(endingOffsets=given(12, -2)) == [12, 0]
    assert ends(endingTimestamp="4") == [14, 4]


def test_offsets_that_are_gone_are_refused_or_passed_over():
    with pytest.raises(UsageError, match="offsets 3 to 9 are gone"):
        starts(startingOffsets=given(3, 0))
    assert starts(startingOffsets=given(3, 0), failOnDataLoss="false") == [10, 0]
    with pytest.raises(UsageError, match=r"endingOffsets: .*it ends at 20"):
        ends(endingOffsets=given(25, 5))
    assert ends(endingOffsets=given(25, 5), failOnDataLoss="false") == [20, 5]


def test_a_time_after_the_newest_message_is_an_error_unless_the_strategy_is_latest():
    with pytest.raises(UsageError, match="no message stored at startingTimestamp=5 or later in orders broker-a 1"):
        starts(startingTimestamp="5")
    assert starts(startingTimestamp="5", startingTimestampStrategy="latest") == [15, 5]


def test_offsets_name_exactly_the_queues_that_are_there():
    with pytest.raises(UsageError, match="names queues that do not exist: orders broker-b 0"):
        starts(startingOffsets='{"orders": {"broker-b": {"0": 1}}}')
    with pytest.raises(UsageError, match="leaves out orders broker-a 1"):
        starts(startingOffsets='{"orders": {"broker-a": {"0": 12}}}')


def test_assigned_queues_alone_are_read_and_must_exist():
    read = options(assign='{"orders": {"broker-a": [1]}}')

    assert available_bounds(read, CLIENT) == {QUEUES[1]: (0, 5)}
    with pytest.raises(UsageError, match="assign names queues that do not exist: orders broker-a 7"):
        available_bounds(options(assign='{"orders": {"broker-a": [7]}}'), CLIENT)


def test_a_topic_that_may_not_be_read_is_named_with_the_remedy():
    with pytest.raises(NoPermission, match=r"topic closed has no queue that may be read.*--perm 6"):
        available_bounds(source_options({"endpoints": "x:1", "topic": "closed"}, "batch"), CLIENT)
