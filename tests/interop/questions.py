"""Requests to a broker as bare questions, by what they ask: right ones, which a test changes in one place.

``#`` in a name stands for the number of the case that asks.
"""

from __future__ import annotations

import json
from typing import Any

from tests.interop.asking import Question

BORN_MS = 1_700_000_000_000
ALWAYS = 2**62


def send(name: str, body: bytes = b"x", code: int = 310, **changed: object) -> Question:
    fields: dict[str, object] = {
        "a": "P#", "b": "Same#", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": BORN_MS, "h": 0, "i": "", "j": 0, "k": "false",
        "m": "false", **changed,
    }  # fmt: skip
    return Question(name, code, {k: v for k, v in fields.items() if v is not None}, body)


def pull(name: str, **changed: object) -> Question:
    fields: dict[str, object] = {
        "consumerGroup": "G#", "topic": "Same#", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0,
        "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG", **changed,
    }  # fmt: skip
    return Question(name, 11, {k: v for k, v in fields.items() if v is not None})


def make_topic(name: str, topic: str, **changed: object) -> Question:
    fields: dict[str, object] = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", **changed,
    }  # fmt: skip
    return Question(name, 17, {k: v for k, v in fields.items() if v is not None})


def heartbeat(name: str, *topics: str, group: str = "G#", version: int = 5) -> Question:
    subscriptions = [{"topic": t, "subString": "*", "subVersion": version, "expressionType": "TAG"} for t in topics]
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False, "subscriptionDataSet": subscriptions,
    }  # fmt: skip
    return of_json(
        name, 34, {"clientID": "c@1", "producerDataSet": [{"groupName": "P#"}], "consumerDataSet": [consumer] if topics else []}
    )


def heartbeat_of(name: str, subscription: dict[str, object]) -> Question:
    consumer = {"groupName": "Unversioned#", "consumeType": 1, "messageModel": 1, "subscriptionDataSet": [subscription]}
    return of_json(name, 34, {"clientID": "c@1", "consumerDataSet": [consumer], "producerDataSet": []})


def of_json(name: str, code: int, body: Any) -> Question:
    return Question(name, code, {}, json.dumps(body).encode())


def by_key(name: str, key: str, **changed: object) -> Question:
    fields = {"topic": "Same#", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": ALWAYS, **changed}
    return Question(name, 12, fields)


def of_queue(name: str, code: int, queue_id: int = 0, topic: str = "Same#", **more: object) -> Question:
    return Question(name, code, {"topic": topic, "queueId": queue_id, **more})


def offset(name: str, code: int, group: str = "G#", topic: str = "Same#", queue_id: int = 0, **more: object) -> Question:
    return of_queue(name, code, queue_id, topic, consumerGroup=group, **more)


def send_back(name: str, **changed: object) -> Question:
    fields: dict[str, object] = {
        "offset": 0, "group": "G#", "delayLevel": 0, "originMsgId": "x", "originTopic": "Same#", "unitMode": "false",
        "maxReconsumeTimes": 16, **changed,
    }  # fmt: skip
    return Question(name, 36, fields)


def lock(name: str, code: int = 41, client: str = "c@1", queues: tuple[int, ...] = (0, 1)) -> Question:
    body = {"consumerGroup": "G#", "clientId": client}
    return of_json(name, code, {**body, "mqSet": [{"topic": "Same#", "brokerName": "broker-a", "queueId": q} for q in queues]})


def decide(name: str, verdict: int, commit_log_offset: int) -> Question:
    fields = {"producerGroup": "P#", "tranStateTableOffset": 0, "commitLogOffset": commit_log_offset, "msgId": "0" * 32}
    return Question(name, 37, {**fields, "commitOrRollback": verdict})


FIRST_RECORD = "7F00000100002A9F0000000000000000"
"""An id of a broker: the record at the beginning of its log."""
