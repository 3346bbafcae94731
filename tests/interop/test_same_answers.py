"""The same requests, right and wrong, to Apache's broker 4.9.7 and to ours: both answer alike, or differ for a reason given."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count

import pytest

from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.record import BatchItem, encode_batch
from tests.interop.apache import Cluster
from tests.interop.asking import Answer, Asker, Question
from tests.interop.ours import Serve
from tests.interop.questions import (
    ALWAYS,
    BORN_MS,
    FIRST_RECORD,
    by_key,
    decide,
    heartbeat,
    heartbeat_of,
    lock,
    make_topic,
    of_json,
    of_queue,
    offset,
    pull,
    send,
    send_back,
)

BEHIND = (11, 12, 29, 30, 31, 32, 33, 38, 202, 203, 204, 208, 223, 303, 321, 328)
"""Requests that only read what Apache's broker enters into its queues, its index and its tables a while after it answered."""

BEFORE = [
    make_topic("the topic", "Same#", readQueueNums=4, writeQueueNums=4),
    *(
        send(f"message {k}", b"%d" % k, h=k, i=f"TAGS\x01t{k % 2}\x02KEYS\x01k{k} all\x02UNIQ_KEY\x01U{k}\x02WAIT\x01true\x02")
        for k in range(10)
    ),
    heartbeat("a consumer", "Same#"),
]
"""What both brokers are told before each case, with names of its own: ``#`` in a name stands for the case's number."""

ALIKE: list[Question | tuple[Question, ...]] = [
    Question("an unknown request", 9999),
    # sends
    send("a send without properties", i=None),
    send("a delayed message", i="DELAY\x011\x02"),
    send("a send to a new topic", b="Fresh#"),
    send("a send to a new topic of one queue that the broker chooses", b="One#", d=1, e=-1),
    (
        send("a send to a new topic of more queues than the template's", b="Many#", d=100, e=7),
        send("a send to a queue beyond them", b="Many#", e=8),
    ),
    send("a send to a new topic of no queue", b="None#", d=-1),
    send("a send to a queue that the topic does not have", e=4),
    send("a send to a huge queue number", e=2**31 - 1),
    send("a send without a template", b="Nothing#", c="nothing"),
    send("a send to a blank topic", b=" "),
    send("a send to a path", b="../../etc"),
    send("a send to a topic of 128 letters", b="t" * 128),
    send("a send to a topic of 127 letters", b="t" * 127),
    send("a send to the topic of delays", b="SCHEDULE_TOPIC_XXXX"),
    send("a send to the half topic", b="RMQ_SYS_TRANS_HALF_TOPIC"),
    send("a send to the template", b="TBW102"),
    send("a send to a retry topic", b="%RETRY%G2#", c="nothing"),
    send("a send of nothing", b""),
    send("a send of the largest body", b"x" * 4 * 1024 * 1024, e=3),
    send("a send of more", b"x" * (4 * 1024 * 1024 + 1)),
    send("a send with too many properties", i="A\x01" + "x" * 32766 + "\x02"),
    send("a send with a level of no delay", i="DELAY\x01-1\x02"),
    send("a send with the transaction's commit of an unknown field", z="whatever"),
    Question(
        "a send with long names",
        10,
        {
            "producerGroup": "P#",
            "topic": "Same#",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": 4,
            "queueId": 0,
            "sysFlag": 0,
            "bornTimestamp": BORN_MS,
            "flag": 0,
        },
        b"long",
    ),
    send("a batch", encode_batch([BatchItem(b"a", b"TAGS\x01A\x02"), BatchItem(b"b", b"")]), 320, m="true", e=1),
    send("a batch under the code of a message", encode_batch([BatchItem(b"a", b"")]), m="true", e=1),
    send("a message under the code of a batch", b"plain", 320, e=1),
    (
        send("a batch to a retry topic", encode_batch([BatchItem(b"a", b""), BatchItem(b"b", b"")]), 320, m="true", b="%RETRY%G#"),
        pull("what it stored for retry", topic="%RETRY%G#"),
    ),
    send("a batch to a new retry topic", encode_batch([BatchItem(b"a", b"")]), 320, m="true", b="%RETRY%G5#", c="nothing"),
    send("a batch to dead letters", encode_batch([BatchItem(b"a", b"")]), 320, m="true", b="%DLQ%G#"),
    (
        send("a send without a group", a=None, e=1),
        send("a send without a group or template, its properties unusual", a=None, c=None, d=None, e=1, i="WAIT\x01false\x02"),
        send("a batch beside them", encode_batch([BatchItem(b"a", b"TAGS\x01A\x02"), BatchItem(b"b", b"")]), 320, m="true", e=1),
        pull("what they stored", queueId=1),
    ),
    # pulls
    pull("a pull of everything"),
    pull("a pull of one", queueOffset=5, maxMsgNums=1),
    pull("a pull of none gives one", maxMsgNums=0),
    pull("a pull with a tag", subscription="t1"),
    pull("a pull with two tags", subscription="t1 || other"),
    pull("a pull with a tag that nobody has", subscription="other"),
    pull("a pull with no expression", subscription=""),
    pull("a pull with a blank kind of expression", expressionType=""),
    pull("a pull with an expression of separators", subscription="||"),
    pull("a pull before the first message", queueOffset=-1),
    pull("a pull far behind the last", queueOffset=10**9),
    pull("a pull of an empty queue", queueId=2),
    pull("a pull without what its bits do not use", commitOffset=None, suspendTimeoutMillis=None, subVersion=None),
    pull("a pull of an empty queue without them", queueId=2, commitOffset=None, suspendTimeoutMillis=None, subVersion=None),
    pull("a pull of an empty queue at 5", queueId=2, queueOffset=5),
    pull("a pull of a queue that is not", queueId=4),
    pull("a pull of a queue below 0", queueId=-1),
    pull("a pull of an unknown topic", topic="Nothing#"),
    pull("a pull with the heartbeat's subscription", sysFlag=0, subVersion=5),
    pull("a pull with a newer subscription than the heartbeat's", sysFlag=0, subVersion=6),
    (
        make_topic("a topic that the heartbeat did not name", "Fresh#"),
        pull("a pull of it with the heartbeat's subscription", sysFlag=0, topic="Fresh#"),
        Question("the lag of a group in a topic it does not subscribe to", 208, {"consumerGroup": "G#", "topic": "Fresh#"}),
    ),
    pull("a pull of a group that nobody is in", sysFlag=0, consumerGroup="Nobody#"),
    (
        pull("a pull that commits", sysFlag=5, commitOffset=3),
        offset("what it committed", 14),
    ),
    # queries
    by_key("a query by key", "k3"),
    by_key("a query for none", "all", maxNum=0),
    by_key("a query by unique key", "U3", _UNIQUE_KEY_QUERY="true"),
    Question("the first record", 33, {"offset": 0}),
    Question("no record", 33, {"offset": ALWAYS}),
    Question("a record before the log", 33, {"offset": -1}),
    of_queue("the offset of the beginning of time", 29, timestamp=0),
    of_queue("the offset of a time below 0", 29, timestamp=-1),
    of_queue("the offset of a time in an empty queue", 29, 2, timestamp=5),
    of_queue("the end of a queue", 30),
    of_queue("the end of an empty queue", 30, 2),
    of_queue("the end of an unknown topic", 30, topic="Nothing#"),
    of_queue("the end of a queue below 0", 30, -2),
    of_queue("the beginning of a queue", 31),
    of_queue("the beginning of an empty queue", 31, 2),
    of_queue("the time of the first message", 32),
    of_queue("the time of the first message of an empty queue", 32, 2),
    # progress
    offset("the progress of a new group", 14, "New#"),
    offset("the progress of a new group in an empty queue", 14, "New#", queue_id=2),
    offset("the progress of a new group in an unknown topic", 14, "New#", "Nothing#"),
    (
        offset("progress", 15, "G2#", commitOffset=2),
        offset("progress beyond the end", 15, "G2#", commitOffset=200_000),
        offset("the progress that was stored", 14, "G2#"),
    ),
    Question("the lag of a group", 208, {"consumerGroup": "G#", "topic": "Same#"}),
    (offset("some progress", 15, commitOffset=4), Question("the lag of a group in all topics", 208, {"consumerGroup": "G#"})),
    Question("the lag of an unknown group", 208, {"consumerGroup": "Nobody#"}),
    Question("a reset in an unknown topic", 222, {"topic": "Nothing#", "group": "G#", "timestamp": 0, "isForce": "true"}),
    Question("a reset of an unknown group", 222, {"topic": "Same#", "group": "Nobody#", "timestamp": 0, "isForce": "true"}),
    # clients
    heartbeat("the same heartbeat", "Same#"),
    (
        Question(
            "a heartbeat of enums as numbers",
            34,
            {},
            json.dumps(
                {
                    "clientID": "c@1",
                    "consumerDataSet": [
                        {
                            "groupName": "Cpp#",
                            "consumeType": 1,
                            "messageModel": 0,
                            "consumeFromWhere": 4,
                            "subscriptionDataSet": [
                                {"topic": "Same#", "subString": "a", "subVersion": 1, "tagsSet": ["a"], "codeSet": ["97"]}
                            ],
                        }
                    ],
                    "producerDataSet": [],
                }
            ).encode(),
        ),
        Question("its connection", 203, {"consumerGroup": "Cpp#"}),
    ),
    (
        heartbeat_of("a heartbeat without a version", {"topic": "Same#", "subString": "*"}),
        pull("a pull with an old version is not newer", consumerGroup="Unversioned#", sysFlag=0, subVersion=5),
        pull("a pull with a version of the future is", consumerGroup="Unversioned#", sysFlag=0, subVersion=2**62),
        Question("leaving a group without an id", 35, {"consumerGroup": "Unversioned#"}),
        Question("nobody is in it", 203, {"consumerGroup": "Unversioned#"}),
    ),
    Question("leaving nothing", 35),
    Question("the members of a group", 38, {"consumerGroup": "G#"}),
    Question("the members of an unknown group", 38, {"consumerGroup": "Nobody#"}),
    Question("the connections of a group", 203, {"consumerGroup": "G#"}),
    Question("the connections of an unknown group", 203, {"consumerGroup": "Nobody#"}),
    Question("the connections of producers", 204, {"producerGroup": "P#"}),
    Question("the connections of unknown producers", 204, {"producerGroup": "Nobody#"}),
    Question("all producers", 328),
    Question("how a client is that is not there", 307, {"consumerGroup": "G#", "clientId": "nobody"}),
    Question("a message for a client that is not there", 309, {"consumerGroup": "G#", "clientId": "nobody", "msgId": FIRST_RECORD}),
    Question("how far a client is that is not there", 223, {"topic": "Same#", "group": "G#", "clientAddr": "nobody"}),
    Question("how far it is in an unknown topic", 223, {"topic": "Nothing#", "group": "G#", "clientAddr": "nobody"}),
    of_json("a subscription to be checked", 46, {"clientId": "c", "group": "G#", "subscriptionData": {"topic": "Same#"}}),
    of_json("an odd one", 46, {"clientId": "c", "group": "G#", "subscriptionData": {"topic": "Same#", "subString": "||"}}),
    Question("leaving a group one is not in", 35, {"clientID": "c@1", "producerGroup": "X#", "consumerGroup": "Y#"}),
    # topics and groups
    (
        make_topic("a topic with more queues to read", "Made#", defaultTopic=None, topicSysFlag=None, order=None),
        send("a send to a queue that is only read", b="Made#", e=2),
        send("a send beyond both", b="Made#", e=3),
        Question("the ends of a topic", 202, {"topic": "Made#"}),
        Question("deleting it", 215, {"topic": "Made#"}),
    ),
    (make_topic("a topic that is only written", "WriteOnly#", perm=2), pull("a pull of it", topic="WriteOnly#")),
    (make_topic("a topic that is only read", "ReadOnly#", perm=4), send("a send to it", b="ReadOnly#")),
    make_topic("a topic with a blank", "a b"),
    make_topic("a topic of 128 letters", "t" * 128),
    *(make_topic(f"the topic {t}", t) for t in ("TBW102", "rmq_sys_x", "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC")),
    Question("deleting an unknown topic", 215, {"topic": "Nothing#"}),
    *(Question(f"deleting {topic}", 215, {"topic": topic}) for topic in ("TBW102", "broker-a", "a b")),
    (
        of_json("a group", 200, {"groupName": "Made#", "retryMaxTimes": 3}),
        Question("deleting a group", 207, {"groupName": "Made#"}),
    ),
    Question("deleting an unknown group", 207, {"groupName": "Nobody#"}),
    # other groups' progress
    (
        offset("progress to clone", 15, commitOffset=3),
        Question("cloning it", 314, {"srcGroup": "G#", "destGroup": "Clone#", "topic": "Same#", "offline": "false"}),
        offset("what the other has", 14, group="Clone#"),
    ),
    (
        Question("cloning nothing", 314, {"srcGroup": "Nobody#", "destGroup": "Clone#", "topic": "Same#", "offline": "true"}),
        Question("cloning in an unknown topic", 314, {"srcGroup": "G#", "destGroup": "Clone#", "topic": "No#", "offline": "true"}),
        offset("the other has nothing", 14, group="Clone#", queue_id=1),
    ),
    (
        offset("progress of one group", 15, commitOffset=3),
        offset("progress of another", 15, group="H#", commitOffset=2),
        Question("the smallest of them", 308, {"compareGroup": "G#", "topic": "Same#"}),
    ),
    Question("the smallest of none", 308, {"compareGroup": "G#", "topic": "Nothing#"}),
    # messages that are sent back, decisions, locks
    send_back("sending back no message", offset=ALWAYS),
    send_back("sending back what is before the log", offset=-1),
    (
        of_json("a group that wants no redelivery", 200, {"groupName": "R#", "retryQueueNums": 0}),
        send_back("sending back for it", group="R#"),
        of_queue("its retry topic stays empty", 30, topic="%RETRY%R#"),
    ),
    (
        of_json("a group that may not consume", 200, {"groupName": "R#", "consumeEnable": False}),
        pull("its pull", consumerGroup="R#"),
    ),
    (
        send("a message that failed often enough", b="%RETRY%G#", j=16, l=16),
        pull("it is a dead letter", topic="%DLQ%G#"),
    ),
    send("a message that failed more often", b="%RETRY%G#", j=20, l=16),
    send("a message that failed before", b="%RETRY%G#", j=2, l=16),
    decide("a commit of nothing", 8, ALWAYS),
    decide("a rollback of nothing", 12, ALWAYS),
    (
        lock("locking queues"),
        lock("locking them for another", client="d@2"),
        lock("unlocking them for another", 42, client="d@2"),
        lock("locking them again"),
        lock("unlocking them", 42),
        lock("locking them for another now", client="d@2"),
    ),
    lock("locking nothing", queues=()),
    # who consumes
    Question("who consumes an unknown topic", 300, {"topic": "Nothing#"}),
    (offset("progress of a group", 15, commitOffset=4), Question("who consumes a topic", 300, {"topic": "Same#"})),
    Question("how old the messages of an unknown topic are", 303, {"topic": "Nothing#", "group": "G#"}),
    Question("how old messages are for a group", 303, {"topic": "Same#", "group": "G#"}),
    Question("the ends of an unknown topic", 202, {"topic": "Nothing#"}),
    # what brokers, clients and name servers ask or answer
    Question("a reset for a client", 220, {"topic": "Same#", "group": "G#", "timestamp": 0, "isForce": "true"}),
    Question("a question for a client", 221, {"topic": "Same#", "group": "G#"}),
    Question("a reply for a client", 326),
    Question("a check for a client", 39, {"tranStateTableOffset": 0, "commitLogOffset": 0}),
    Question("a notice for a client", 40, {"consumerGroup": "G#"}),
    *(Question(f"request {code} of name servers", code) for code in (101, 103)),
    Question("the route of a topic", 105, {"topic": "Same#"}),
    # odd topics and messages
    make_topic("a topic without permission", "Closed#", perm=0),
    make_topic("a topic of several tags", "Tags#", topicFilterType="MULTI_TAG"),
    (
        make_topic("a topic that nobody writes to", "Unwritten#", writeQueueNums=0, readQueueNums=1),
        send("writing to it", b="Unwritten#"),
    ),
    send("a name that RocketMQ takes", b="a%b|c-d_#"),
    *(
        send(f"a name with {what}", b=name)
        for what, name in (("a point", "a.b#"), ("letters of China", "话题#"), ("a blank", "a b#"))
    ),
    *(
        send(f"a send to {topic}", b=topic)
        for topic in ("TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    ),
    send("a send with the flag of compression", f=1, e=1),
    send("a send of a time before 1970", g=-1, e=1),
    send("a half message that is none", i="TRAN_MSG\x01false\x02", e=1),
    by_key("a query for no key", ""),
    by_key("a query of a time that is over before it begins", "k1", beginTimestamp=ALWAYS, endTimestamp=0),
    offset("the progress in a queue below 0", 14, "New#", queue_id=-1),
    (offset("progress below 0", 15, commitOffset=-5), offset("what was stored of it", 14)),
    of_queue("the offset of a time to come", 29, timestamp=ALWAYS),
    *(of_queue(f"request {code} of an unknown queue", code, 77) for code in (30, 31, 32)),
    # consume queues
    of_queue("entries of a queue", 321, index=0, count=3),
    of_queue("no entries of a queue", 321, index=0, count=0),
    of_queue("entries behind the end", 321, index=99, count=3),
    of_queue("entries of an unknown queue", 321, queue_id=3, index=0, count=3),
    of_queue("entries of an unknown topic", 321, topic="Nothing#", index=0, count=3),
    of_queue("entries for a group that is online", 321, index=1, count=1, consumerGroup="G#"),
    of_queue("entries for one that is not", 321, index=1, count=1, consumerGroup="Nobody#"),
    # settings
    Question("changing a setting", 25, {}, b"fileReservedTime=73\ndeleteWhen=05\n"),
    Question("changing no setting", 25),
    Question("changing one that means nothing here", 25, {}, b"waitTimeMillsInTransactionQueue=3000\n"),
    # what is kept for nothing
    Question("cleaning expired queues", 306),
    Question("cleaning unused topics", 316),
    Question("deleting the expired log", 329),
    Question("a counter nobody has", 315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "Nothing#"}),
]

DIFFERENT = [
    (send("a send without a queue", e=None), 1, 1, "ours names the missing field, Java its NullPointerException"),
    (send("a send to a queue that is no number", e="abc"), 1, 1, "ours names the field, Java its NumberFormatException"),
    (make_topic("a topic without a name", ""), 1, 1, "in ROCKETMQ headers an empty field counts as missing"),
    (send("a broken batch", b"garbage", 320, m="true"), 1, 13, "what a message is refused for, a batch is refused for"),
    (send("a send to a new topic without a template", b="New#", c=None), 1, 1, "ours names the missing field"),
    (send("a send to a new topic without its queues", b="New#", d=None), 1, 1, "the same"),
    (send("a send to a new retry topic without a template", b="%RETRY%N#", c=None, d=None), 1, 1, "the same"),
    (pull("a pull that commits nothing", sysFlag=5, commitOffset=None), 1, 1, "the same"),
    (pull("a pull that waits for no time", sysFlag=6, suspendTimeoutMillis=None), 1, 1, "the same"),
    (pull("a pull without the version it means", sysFlag=0, subVersion=None), 1, 1, "the same"),
    (Question("leaving a producer group without an id", 35, {"producerGroup": "P#"}), 1, 0, "the connection says who leaves"),
    (heartbeat_of("a heartbeat without a topic", {"subString": "*"}), 1, 1, "ours names the missing field"),
    (send("a prepared message by its bits alone", f=4), 0, 16, "stored, no consumer would ever see it"),
    (pull("a pull of less than nothing", maxMsgNums=-1), 1, 0, "Java fails to make a list of that size"),
    (pull("a pull with an unknown kind of expression", expressionType="odd"), 0, 23, "unfiltered is not what was asked for"),
    (pull("a pull of a group with a blank", consumerGroup="a b"), 0, 1, "its retry topic could not be"),
    (offset("progress in an unknown topic", 15, topic="Nothing#", commitOffset=1), 0, 17, "as 5.x; the table would only grow"),
    (offset("progress in a queue below 0", 15, queue_id=-1, commitOffset=1), 0, 1, "the same"),
    (Question("how far an unknown group is", 223, {"topic": "Same#", "group": "Nobody#"}), 1, 1, "ours says that nobody is online"),
    (Question("a message without an id", 309, {"consumerGroup": "G#", "clientId": "c@1"}), 1, 1, "ours says that there is none"),
    (heartbeat("a heartbeat of a group with a blank", "Same#", group="a b"), 0, 1, "its retry topic could not be"),
    (of_json("a heartbeat of nobody", 34, {}), 0, 1, "a client without an id cannot be told from others"),
    (
        (
            send("a log that is as long as the bytes there say", b"x" * 1024 * 1024, e=3),
            Question("one record's inside", 33, {"offset": 1}),
        ),
        0,
        1,
        "Java takes any bytes for a record",
    ),
    (Question("changing an unknown setting", 25, {}, b"nonsense=1\n"), 0, 1, "ours names it"),
    (Question("one topic", 351, {"topic": "Same#"}), 3, 0, "since 5.x"),
    (Question("one group", 352, {"group": "G#"}), 3, 0, "since 5.x"),
    (pull("a lite pull")._replace(code=361), 3, 0, "since 5.x"),
    (of_json("a group with a blank", 200, {"groupName": "a b"}), 0, 1, "its retry topic could not be"),
    (send_back("sending back for an unknown group", group="Nobody#"), 0, 26, "sending back creates no group"),
    (send("a delay that is no number", i="DELAY\x01soon\x02"), 1, 13, "what a message is refused for, not a NumberFormatException"),
    (make_topic("a topic of less than no queues", "Less#", readQueueNums=-1), 0, 1, "no client could use it"),
    (make_topic("a topic with unknown permissions", "Perm#", perm=99), 0, 1, "there are four bits"),
]
"""Question, Apache's code, our code, why."""


class Both:
    """Two brokers that are told and asked the same, under names that no two cases share."""

    def __init__(self, cluster: Cluster, ours: int) -> None:
        self._cluster, self._cases, self.serialization = cluster, count(1), JSON
        self._ports = cluster.broker_port, ours
        self.apache: Asker
        self.ours: Asker

    def revive(self) -> None:
        """Start Apache's broker again if it has died: deleting a topic unmaps files that another of its threads may write to."""
        try:
            Asker(self._ports[0]).close()
        except OSError:
            self._cluster.kill()
            self._cluster.start()

    @contextmanager
    def case(self) -> Iterator[Callable[[Question], tuple[Answer, Answer]]]:
        """Yield what asks both a question over new connections, once both were told `BEFORE`."""
        number = next(self._cases)
        with closing(Asker(self._ports[0])) as self.apache, closing(Asker(self._ports[1])) as self.ours:

            def ask(question: Question) -> tuple[Answer, Answer]:
                named = _named(question, str(number))
                return self.apache.ask(named, self.serialization), self.ours.ask(named, self.serialization)

            for question in BEFORE:
                assert [answer.code for answer in ask(question)] == [0, 0]
            yield ask


def _named(question: Question, number: str) -> Question:
    fields = {name: value.replace("#", number) if isinstance(value, str) else value for name, value in question.fields.items()}
    return question._replace(fields=fields, body=question.body.replace(b"#", number.encode()))


SERIALIZATIONS = {"JSON": JSON, "ROCKETMQ": ROCKETMQ}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """A broker of each kind, one pair for the whole file in whichever order: a start costs more than a hundred questions."""
    home = tmp_path_factory.mktemp("same")
    apache, ours = Cluster("4.9.7", home / "apache"), Serve(home / "data")
    try:
        yield Both(apache.start(), ours.start().broker_port)
    finally:
        apache.kill()
        ours.stop()


@pytest.fixture(params=SERIALIZATIONS)
def both(request: pytest.FixtureRequest, running: Both) -> Both:
    """Both of them, asked in one form of a header."""
    running.serialization = SERIALIZATIONS[request.param]
    running.revive()
    return running


def _steps(case: Question | tuple[Question, ...]) -> tuple[Question, ...]:
    return (case,) if isinstance(case, Question) else case


def _name(value: object) -> str:
    return _steps(value)[-1].name if isinstance(value, tuple) else ""  # a question is a tuple, too


def _cases() -> Iterator[object]:
    """Yield every case in JSON, and in the other form of a header the first with each request, and those that miss a field.

    What a broker does with a header does not depend on how it was written; that each is read right is for the tests of the wire.
    """
    seen: set[int] = set()
    most: dict[int, int] = {}
    for step in (step for case in ALIKE for step in _steps(case)):
        most[step.code] = max(most.get(step.code, 0), len(step.fields))
    for case in ALIKE:
        codes = {step.code for step in _steps(case)}
        misses = any(len(step.fields) < most[step.code] for step in _steps(case))
        for form in ("JSON", "ROCKETMQ") if codes - seen or misses else ("JSON",):
            yield pytest.param(form, case, id=f"{form}-{_steps(case)[-1].name}")
        seen |= codes


@pytest.mark.mission("000-01")
@pytest.mark.parametrize(("both", "case"), [*_cases()], indirect=["both"])
def test_both_brokers_answer_alike(both: Both, case: Question | tuple[Question, ...]) -> None:
    with both.case() as ask:
        steps = _steps(case)
        assert steps
        for question in steps:
            theirs, mine = ask(question)
            end = time.monotonic() + 60
            while question.code in BEHIND and mine != theirs and time.monotonic() < end:
                time.sleep(0.02)
                theirs, mine = ask(question)
            assert mine == theirs, question.name


def test_ours_also_tells_the_lag_of_a_group_that_has_no_progress_yet(both: Both) -> None:
    with both.case() as ask:
        theirs, mine = ask(Question("the lag of a new group in all topics", 208, {"consumerGroup": "G#"}))
        assert theirs.body["offsetTable"] == {}
        assert sum(queue["brokerOffset"] - queue["consumerOffset"] for queue in mine.body["offsetTable"].values()) == 10


def test_system_topics_are_the_same_and_two_of_ours(both: Both) -> None:
    with both.case() as ask:
        theirs, mine = ask(Question("system topics", 305))

    ours_only = {"rmq_sys_HALFMOON_BATCHES", "rmq_sys_wheel_timer"}  # admin tools take what is not here for users' topics
    assert (set(mine.body["topicList"]), theirs.code, mine.code) == (set(theirs.body["topicList"]) | ours_only, 0, 0)


def test_both_told_the_consumer_of_its_group(both: Both) -> None:
    with both.case() as ask:
        end = time.monotonic() + 60
        while not (both.ours.notices and both.apache.notices) and time.monotonic() < end:
            time.sleep(0.02)
            ask(Question("anything", 305))
        assert set(both.ours.notices) == set(both.apache.notices) == {40}


@pytest.mark.parametrize("both", ["JSON"], indirect=True)
@pytest.mark.parametrize(("case", "theirs", "our", "_why"), DIFFERENT, ids=_name)
def test_known_differences_are_these(both: Both, case: Question | tuple[Question, ...], theirs: int, our: int, _why: str) -> None:
    *before, question = _steps(case)
    with both.case() as ask:
        for step in before:
            assert [answer.code for answer in ask(step)] == [0, 0]
        assert [answer.code for answer in ask(question)] == [theirs, our]
