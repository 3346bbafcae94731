"""What a slave asks its master: where queues end, of all topics that there are."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.broker.copies.asking import INNER_TOPICS, queue_ends
from halfmoon.errors import BrokerError
from halfmoon.store.layout import HALF_TOPIC
from halfmoon.wire.command import Command
from halfmoon.wire.headers.topic import GetTopicStatsInfo
from tests.broker.half import prepare
from tests.broker.talk import Talk


def asked(talk: Talk, refused: str = "") -> Any:
    """Return what a slave learns; ``refused`` is a topic that the master does not show."""
    operation = queue_ends("10.0.0.1:10911")
    effect = operation.send(None)
    while True:
        request = effect.request
        is_refused = isinstance(request, GetTopicStatsInfo) and request.topic == refused
        reply = Command(code=1, flag=1, remark="no permission") if is_refused else talk.ask(request)
        try:
            effect = operation.send(reply)
        except StopIteration as stop:
            return stop.value


def test_the_ends_of_all_queues_are_asked_for_those_of_half_messages_too(talk: Talk) -> None:
    talk.send("T", queue_id=2)
    talk.send("T", queue_id=2)
    prepare(talk)
    ends = asked(talk)
    assert ends["T", 2] == 2
    assert ends[HALF_TOPIC, 0] == 1
    assert {topic for topic, _ in ends} >= {"T", HALF_TOPIC}


def test_a_topic_that_is_not_there_has_no_ends(talk: Talk) -> None:
    for topic in INNER_TOPICS:
        talk.broker.topics._table.pop(topic, None)
    assert not {topic for topic, _ in asked(talk)} & INNER_TOPICS


def test_a_refusal_is_raised(talk: Talk) -> None:
    talk.send("T")
    with pytest.raises(BrokerError, match="no permission"):
        asked(talk, refused="T")
