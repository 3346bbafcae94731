"""Where the queues of a master end, as a slave asks for it: of all topics that there are."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.broker.copies.asking import queue_ends
from halfmoon.errors import ACCESS_REFUSED, BrokerError
from halfmoon.store.layout import HALF_TOPIC
from halfmoon.wire.command import Command
from halfmoon.wire.headers.topic import GetTopicStatsInfo
from tests.broker.half import COMMIT, end, prepare
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


def test_each_topic_that_has_a_queue_is_asked_for_those_of_the_broker_too(talk: Talk) -> None:
    talk.send("T", properties="DELAY\x011\x02")
    talk.send("T", properties="TIMER_DELAY_SEC\x0150\x02")
    end(talk, prepare(talk), COMMIT)
    ends, _ = asked(talk, everything=True)
    assert talk.broker.store.topics()
    assert {topic for topic, _ in ends} >= set(talk.broker.store.topics())


def test_a_topic_that_was_deleted_meanwhile_has_no_ends(talk: Talk) -> None:
    talk.send("T")
    ends, refused = asked(talk, refused="T", code=17, remark="topic[T] not exist", everything=True)
    assert "T" not in {topic for topic, _ in ends}
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
