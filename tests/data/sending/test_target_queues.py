"""Queues of topics: asked for once, and an error with a remedy where there are none."""

from __future__ import annotations

import pytest

from halfmoon.data.sending.target_queues import TargetQueues
from halfmoon.errors import NoRoute, UsageError
from halfmoon.model import MessageQueue

QUEUES = [MessageQueue("orders", "b", 0), MessageQueue("orders", "b", 1)]


def test_queues_of_a_topic_are_asked_for_once():
    asked: list[str] = []
    targets = TargetQueues(lambda topic: asked.append(topic) or QUEUES)

    assert [targets("orders") for _ in range(3)] == [QUEUES] * 3
    assert asked == ["orders"]


def test_a_topic_without_queues_or_without_a_route_says_what_to_do_and_is_asked_for_again():
    answers: list = [NoRoute("orders"), [], QUEUES]

    def find(topic: str) -> list[MessageQueue]:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    targets = TargetQueues(find)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"orders\b.*halfmoon topic create.*--perm 6"):
            targets("orders")
    assert targets("orders") == QUEUES
