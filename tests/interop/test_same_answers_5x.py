"""What clients of 5.x ask over the same protocol, to Apache's broker 5.3.3 and to ours: both answer alike."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.interop.apache import Cluster
from tests.interop.asking import Asker, Question
from tests.interop.ours import Serve


def _json(name: str, code: int, body: Any) -> Question:
    return Question(name, code, {}, json.dumps(body).encode())


def _topics(name: str, *topics: str) -> Question:
    configs = [{"topicName": topic, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for topic in topics]
    return _json(name, 18, {"topicConfigList": [{**config, "topicFilterType": "SINGLE_TAG"} for config in configs]})


def _assignment(name: str, **changed: str) -> Question:
    query = {"topic": "T", "consumerGroup": "G", "clientId": "c@1", "strategyName": "AVG", "messageModel": "CLUSTERING"}
    return _json(name, 400, {**query, **changed})


def _mode(name: str, topic: str = "T") -> Question:
    return _json(name, 401, {"topic": topic, "consumerGroup": "G", "mode": "PULL"})


SUBSCRIPTION = {"topic": "T", "subString": "*", "subVersion": 5, "expressionType": "TAG"}
HEARTBEAT = {
    "clientID": "c@1",
    "producerDataSet": [],
    "consumerDataSet": [
        {
            "groupName": "G",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "unitMode": False,
            "subscriptionDataSet": [SUBSCRIPTION],
        }
    ],
}
BEFORE = [
    _topics("topics of a list", "T", "U"),
    _json("a consumer", 34, HEARTBEAT),
    Question("progress", 15, {"topic": "T", "consumerGroup": "G", "queueId": 0, "commitOffset": 0}),
]
ALIKE = [
    _topics("a list with a system topic", "V", "TBW102"),
    _topics("a list with a name that cannot be", "a/b"),
    _json("groups of a list", 225, {"groupConfigList": [{"groupName": "G1"}, {"groupName": "G2", "retryMaxTimes": 3}]}),
    Question("the topics of a group", 343, {"group": "G"}),
    Question("the topics of an unknown group", 343, {"group": "Nobody"}),
    Question("the subscription of a group", 345, {"group": "G", "topic": "T"}),
    Question("the subscription of an unknown group", 345, {"group": "Nobody", "topic": "T"}),
    Question("whether a group may read a topic", 353, {"group": "G", "topic": "T"}),
    Question("that it may not", 353, {"group": "G", "topic": "T", "readable": "false"}),
    Question("that it may", 353, {"group": "G", "topic": "T", "readable": "true"}),
    Question("the end of a queue that is no static topic's", 30, {"topic": "T", "queueId": 0, "lo": "true"}),
    _mode("a mode"),
    _mode("a mode for a retry topic", "%RETRY%G"),
    _mode("a mode for an unknown topic", "Nothing"),
    Question("all modes", 402),
    _assignment("queues for a member"),
    _assignment("queues for a stranger", clientId="stranger"),
    _assignment("queues by an unknown strategy", strategyName="ODD"),
    _assignment("queues of an unknown topic", topic="Nothing"),
    _assignment("queues for an unknown group", consumerGroup="Nobody"),
    _assignment("queues for who broadcasts", messageModel="BROADCASTING"),
    Question("cloned progress", 314, {"srcGroup": "G", "destGroup": "H", "topic": "T", "offline": "true"}),
    Question("the smallest progress", 308, {"compareGroup": "G", "topic": "T"}),
]
"""Asked one after the other over one connection."""


@pytest.fixture(scope="module")
def askers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Asker, Asker]]:
    """A connection to each broker, told `BEFORE`."""
    home = tmp_path_factory.mktemp("same5")
    apache, ours = Cluster("5.3.3", home / "apache"), Serve(home / "data")
    try:
        with closing(Asker(apache.start().broker_port)) as theirs, closing(Asker(ours.start().broker_port)) as mine:
            for question in BEFORE:
                assert [asker.ask(question).code for asker in (theirs, mine)] == [0, 0], question.name
            yield theirs, mine
    finally:
        apache.kill()
        ours.stop()


def test_both_brokers_answer_clients_of_5x_alike(askers: tuple[Asker, Asker]) -> None:
    for question in ALIKE:
        theirs, mine = (asker.ask(question) for asker in askers)
        end = time.monotonic() + 60
        while theirs != mine and question.code == 400 and time.monotonic() < end:  # a route is known a while after its topic
            time.sleep(0.1)
            theirs, mine = (asker.ask(question) for asker in askers)
        assert mine == theirs, question.name
