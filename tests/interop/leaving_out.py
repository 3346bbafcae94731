"""Every request that a broker or name server answers, whole and with one field left out: what Apache's 4.9.7 answers to each.

The requests come from the protocol table: a field without a value here is an error. ``leaving_out.json`` keeps the codes that
4.9.7 gave; `test_leaving_out.py` asks it again, and the tests of that name beside our broker's and name server's need no Java.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from halfmoon.wire.record import BatchItem, encode_batch
from halfmoon.wire.table import REQUESTS
from tests.interop.asking import Question

RECORDED = Path(__file__).with_name("leaving_out.json")
"""``{"code": {"what was left out": answer's code}}``; ``nothing`` is the whole request, a name with a dot stands in the body."""

BORN_MS = 1_700_000_000_000
KEYS = "KEYS\x01k1\x02"
BROKER = (10, 310, 320, 11, 12, 33, 29, 30, 31, 32, 34, 35, 38, 46, 203, 204, 328, 14, 15, 43, 208, 222, 300, 303, 317, 17, 215, 21,
          202, 305, 200, 207, 201, 26, 315, 28, 307, 36, 41, 42, 45, 306, 308, 314, 316, 321, 329)  # fmt: skip
NAME_SERVER = (100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 219, 224, 304, 311, 312, 313, 319, 322, 327)
"""Codes that both answer. Those of 5.x alone, and 25 and 318 whose bodies are no JSON, are not asked."""

VALUES: dict[str, object] = {
    "producerGroup": "P", "consumerGroup": "G", "group": "G", "groupName": "Gone", "topic": "Left", "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0, "bornTimestamp": BORN_MS, "flag": 0, "properties": KEYS,
    "bname": "broker-a", "reconsumeTimes": 0, "unitMode": "false", "maxReconsumeTimes": 16, "batch": "false", "queueOffset": 0,
    "maxMsgNums": 32, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*", "expressionType": "TAG",
    "maxMsgBytes": 1 << 20, "requestSource": 0, "proxyFrowardClientId": "c", "key": "k1", "maxNum": 8, "beginTimestamp": 0,
    "endTimestamp": 2**62, "_UNIQUE_KEY_QUERY": "false", "offset": 0, "timestamp": 0, "boundaryType": "LOWER", "committed": "true",
    "clientID": "c@1", "setZeroIfNotFound": "true", "topicList": "Left", "isForce": "true", "isOrder": "false", "readQueueNums": 4,
    "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "attributes": "",
    "force": "false", "removeOffset": "false", "cleanOffset": "false", "statsName": "TOPIC_PUT_NUMS", "statsKey": "Left",
    "clientId": "nobody", "jstackEnable": "false", "namespace": "N", "value": "v", "brokerName": "broker-z",
    "brokerAddr": "127.0.0.1:1", "clusterName": "Z", "haServerAddr": "127.0.0.1:2", "brokerId": 0, "compressed": "false",
    "bodyCrc32": 0, "heartbeatTimeoutMillis": 60_000, "enableActingMaster": "false", "acceptStandardJsonOnly": "true",
    "cluster": "Z", "delayLevel": 0, "originMsgId": "", "originTopic": "Left", "reason": "because",
    "releaseOnClose": "true", "filterGroups": "Nobody", "compareGroup": "G", "srcGroup": "G", "destGroup": "Other",
    "offline": "true", "index": 0, "count": 1,
}  # fmt: skip

OURS = {"health", "topicBirthMs", "absentBrokers", "before", "epoch"}
"""Fields that Apache's brokers do not know."""

V2: dict[str, object] = {
    "a": "P", "b": "Left", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": BORN_MS, "h": 0, "i": KEYS, "j": 0, "k": "false", "l": 16,
    "m": "false", "n": "broker-a",
}  # fmt: skip
OF_CODE: dict[int, dict[str, object]] = {
    310: V2, 320: {**V2, "m": "true"}, 11: {"sysFlag": 4}, 215: {"topic": "Doomed"}, 216: {"topic": "Doomed"}, 222: {"offset": -1},
}  # fmt: skip

SUBSCRIPTION = {"topic": "Left", "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 5, "expressionType": "TAG",
                "classFilterMode": False}  # fmt: skip
CONSUMER = {"groupName": "G", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "unitMode": False,
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [SUBSCRIPTION]}  # fmt: skip
HEARTBEAT = {"clientID": "c@1", "producerDataSet": [{"groupName": "P"}], "consumerDataSet": [CONSUMER]}
QUEUE = {"topic": "Left", "brokerName": "broker-a", "queueId": 0}
VERSION = {"counter": 1, "timestamp": BORN_MS}
TOPIC = {"topicName": "Left", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG",
         "topicSysFlag": 0, "order": False}  # fmt: skip
BODIES: dict[int, Any] = {
    34: HEARTBEAT,
    46: {"clientId": "c@1", "group": "G", "subscriptionData": SUBSCRIPTION},
    200: {"groupName": "Made", "consumeEnable": True, "consumeFromMinEnable": True, "consumeBroadcastEnable": True, "brokerId": 0,
          "retryQueueNums": 1, "retryMaxTimes": 16, "whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": True},
    41: {"consumerGroup": "G", "clientId": "c@1", "mqSet": [QUEUE]},
    42: {"consumerGroup": "G", "clientId": "c@1", "mqSet": [QUEUE]},
    103: {"topicConfigSerializeWrapper": {"dataVersion": VERSION, "topicConfigTable": {"Left": TOPIC}}, "filterServerList": []},
    322: VERSION,
}  # fmt: skip
DIFFERENT = {
    (34, ".clientID"): (1, "a client without an id cannot be told from others; the next heartbeat of its group fails in Java"),
    (35, "clientID"): (0, "the connection says who leaves; Java takes it too where the client is in no producer group"),
    (15, "consumerGroup"): (1, "nobody could read it again; Java stores it for a group named null"),
    (15, "topic"): (1, "the same"),
    (41, ".clientId"): (1, "nobody could renew the lock or give it back; Java keeps it for a client named null"),
    (42, ".clientId"): (1, "the same"),
    (314, "destGroup"): (1, "nobody could read it again; Java keeps it for a group named null"),
    (100, "value"): (1, "there is nothing to store"),
    (103, "brokerName"): (1, "nobody could find it"),
    (103, "brokerAddr"): (1, "the same"),
    (103, "clusterName"): (1, "the same"),
}
"""What ours answers instead, and why."""

BATCH = encode_batch([BatchItem(b"a", b"TAGS\x01A\x02"), BatchItem(b"b", b"")])


def whole(code: int) -> Question:
    """Return a request that is right, with every field of the table."""
    values = {**VALUES, **OF_CODE.get(code, {})}
    fields = {name: values[name] for name in REQUESTS[code].header.__struct_encode_fields__ if name not in OURS}
    body = json.dumps(BODIES[code]).encode() if code in BODIES else BATCH if code == 320 else b"x" if code in (10, 310) else b""
    return Question("nothing", code, fields, body)


def questions(code: int) -> Iterator[Question]:
    """Yield the whole request, then one for each field left out, of the header and of the JSON body; named by what is left out."""
    request = whole(code)
    yield request
    for name in request.fields:
        yield request._replace(name=name, fields={other: value for other, value in request.fields.items() if other != name})
    for name, body in _without(BODIES.get(code)):
        yield request._replace(name=name, body=json.dumps(body).encode())
    if code in BODIES:
        yield request._replace(name="body", body=b"")


def _without(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each version of a JSON value with one member of one of its objects left out, and where that stood."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(value, dict):
            yield f"{path}.{key}", {other: each for other, each in value.items() if other != key}
        for name, changed in _without(item, f"{path}.{key}"):
            yield name, {**value, key: changed} if isinstance(value, dict) else [*value[:key], changed, *value[key + 1 :]]


def before(code: int) -> list[Question]:
    """Return what is told before each question, so that what the last one did does not matter."""
    if code in NAME_SERVER:
        return [whole(103), whole(100)]
    doomed = whole(17)._replace(fields={**whole(17).fields, "topic": "Doomed"})
    offsets = [whole(15)._replace(fields={**whole(15).fields, "queueId": queue_id}) for queue_id in range(4)]
    return [whole(17), doomed, whole(310), whole(34), *offsets]


def answers(code: int, connect: Callable[[], Callable[[Question], int]]) -> dict[str, int]:
    """Ask everything of a code, each on a connection of its own, and return the codes of the answers by what was left out."""
    found = {}
    for question in questions(code):
        ask = connect()
        for earlier in before(code):
            assert ask(earlier) == 0, earlier
        found[question.name] = ask(question)
    return found


def recorded(code: int) -> dict[str, int]:
    """Return what Apache's answered."""
    return dict(json.loads(RECORDED.read_text())[str(code)])


def expected(code: int) -> dict[str, int]:
    """Return what ours answers: the same, but for the differences."""
    return {name: DIFFERENT.get((code, name), (theirs, ""))[0] for name, theirs in recorded(code).items()}
