"""What a slave asks its master: where queues end, of all topics that there are."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.broker.copies.asking import INNER_TOPICS, queue_ends
from halfmoon.errors import ACCESS_REFUSED, BrokerError
from halfmoon.store.layout import HALF_TOPIC
from halfmoon.wire.command import Command
from halfmoon.wire.headers.topic import GetTopicStatsInfo
from tests.broker.half import prepare
from tests.broker.talk import Talk

DENIED = f"{ACCESS_REFUSED}: No default permission for topic:T"


def asked(talk: Talk, refused: str = "", *, code: int = 1, remark: str = DENIED, everything: bool = False) -> Any:
    """Return what a slave learns; ``refused`` is a topic that the master does not show, with a code."""
    operation = queue_ends("10.0.0.1:10911", everything=everything)
    effect = operation.send(None)
    while True:
        request = effect.request
        is_refused = isinstance(request, GetTopicStatsInfo) and request.topic == refused
        reply = Command(code=code, flag=1, remark=remark) if is_refused else talk.ask(request)
        try:
            effect = operation.send(reply)
        except StopIteration as stop:
            return stop.value


def test_the_ends_of_all_queues_are_asked_for_where_the_log_does_not_come_whole(talk: Talk) -> None:
    talk.send("T", queue_id=2)
    talk.send("T", queue_id=2)
    prepare(talk)
    ends, refused = asked(talk, everything=True)
    assert (ends["T", 2], ends[HALF_TOPIC, 0], refused) == (2, 1, [])


def test_where_it_comes_whole_only_queues_without_a_message_are_of_interest(talk: Talk) -> None:
    talk.send("T", queue_id=2)
    ends, _ = asked(talk)
    assert ("T", 2) not in ends
    assert ends["T", 1] == 0


def test_a_topic_that_is_not_there_has_no_ends(talk: Talk) -> None:
    for topic in INNER_TOPICS:
        talk.broker.topics._table.pop(topic, None)
    ends, refused = asked(talk)
    assert not {topic for topic, _ in ends} & INNER_TOPICS
    assert refused == []


def test_a_topic_that_the_account_may_not_see_is_named_and_the_others_count(talk: Talk) -> None:
    talk.send("T")
    talk.send("U")
    ends, refused = asked(talk, refused="T", everything=True)
    assert refused == ["T"]
    assert ends["U", 0] == 1


def test_any_other_refusal_is_raised_so_that_the_slave_asks_again_before_it_copies(talk: Talk) -> None:
    talk.send("T")
    with pytest.raises(BrokerError, match="busy"):
        asked(talk, refused="T", code=2, remark="busy")
