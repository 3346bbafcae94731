"""What requests change in a table is on the disk before their answer: a walk over all requests that the broker answers."""

from __future__ import annotations

import json
from random import Random

import pytest

from halfmoon.model import MessageQueue
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import ResetOffsetBody, to_json
from halfmoon.wire.command import Command, encode
from halfmoon.wire.headers.offset import (
    InvokeBrokerToResetOffset,
    MoveGroupOffsets,
    OffsetReply,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from halfmoon.wire.headers.topic import UpdateAndCreateTopic
from tests.broker.talk import START_MS, pull_header
from tests.interop.asking import Question
from tests.interop.leaving_out import BODIES, BROKER, TOPIC, before, whole

GROUP_OFFSETS = to_json(ResetOffsetBody({MessageQueue("Left", "broker-a", 0): 1}))
NEW_GROUP = {**BODIES[34], "consumerDataSet": [{**BODIES[34]["consumerDataSet"][0], "groupName": "New"}]}
MORE = {
    15: Question("progress", 15, {**whole(15).fields, "commitOffset": 1}),
    18: Question("topics", 18, {}, json.dumps({"topicConfigList": [{**TOPIC, "topicName": "Many"}]}).encode()),
    25: Question("a setting", 25, {}, b"brokerPermission=4\n"),
    34: Question("a new group", 34, {}, json.dumps(NEW_GROUP).encode()),
    207: Question("a group that has a mode", 207, {"groupName": "G", "cleanOffset": "true"}),
    215: Question("a topic that has a mode", 215, {"topic": "Left"}),
    222: Question("to the end", 222, {"topic": "Left", "group": "G", "timestamp": -1, "isForce": "true"}),
    225: Question("groups", 225, {}, json.dumps({"groupConfigList": [BODIES[200]]}).encode()),
    353: Question("forbid", 353, {"group": "G", "topic": "Left", "readable": "false"}),
    401: Question("a mode", 401, {}, json.dumps({"topic": "Left", "consumerGroup": "G", "mode": "PULL"}).encode()),
    31010: Question("a move", 31010, {"topic": "Left", "group": "G"}, GROUP_OFFSETS),
}
"""Beside those of `leaving_out`, or instead of them where those change nothing."""

BEFORE = {207: [MORE[401]], 215: [MORE[401]]}
CHANGING = {15, 17, 18, 25, 34, 200, 207, 215, 222, 225, 314, 353, 401, 31010}
"""Requests that change a table in this walk: with fewer it would prove nothing."""


def feed(talk, question: Question, opaque: int) -> None:
    fields = {name: str(value) for name, value in question.fields.items()}
    talk.feed(1, encode(Command(question.code, 0, opaque, 0, 409, None, fields, question.body)))
    talk.turn()


def changed_by(talk, code: int) -> set[str]:
    """Ask once and check that the answer comes after what it changed is saved, unless the handler says why not; return that."""
    talk.connect(1)
    for opaque, question in enumerate([*before(code), *BEFORE.get(code, [])]):
        feed(talk, question, opaque)
    talk.wait(6_000)
    tables = talk.broker.tables
    tables.changes.clear()
    talk.held_back = []
    feed(talk, MORE.get(code) or whole(code), 77)
    changed = set(tables.changes)
    early = talk.answer(77)
    talk.release()
    if changed and not hasattr(talk.broker._handlers[code], "saved_later"):
        assert early is None or early.code != 0, f"{code} answered before {changed} was saved"
        assert early is not None or talk.answer(77) is not None
    return changed


def test_what_a_request_changes_is_saved_before_its_answer_or_it_says_why_not(make_talk):
    changing = {code for code in sorted({*BROKER, *MORE}) if changed_by(make_talk(), code)}

    assert changing >= CHANGING


# ---------------------------------------------------------------- groups that are moved


def with_group(talk):
    """Have a group at offset 3 of a queue with five messages, and online."""
    talk.ask(UpdateAndCreateTopic(
        topic="orders", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6, topic_filter_type="SINGLE_TAG",
        order=False,
    ))  # fmt: skip
    for _ in range(5):
        talk.send("orders")
    talk.consume("orders")
    talk.ask(UpdateConsumerOffset(consumer_group="G", topic="orders", queue_id=0, commit_offset=3))
    talk.wait(6_000)
    return talk


@pytest.fixture
def group(make_talk):
    """A group on a disk that may refuse to be written."""
    return with_group(make_talk(disk=SimDisk(Random(1))))


RESET = (InvokeBrokerToResetOffset(topic="orders", group="G", timestamp=START_MS - 1, is_force=True), b"")
MOVE = (MoveGroupOffsets(topic="orders", group="G"), to_json(ResetOffsetBody({MessageQueue("orders", "broker-a", 0): 0})))


def offset_of(talk) -> int:
    reply = talk.ask(QueryConsumerOffset(consumer_group="G", topic="orders", queue_id=0))
    return int(reply.header(OffsetReply).offset)


@pytest.mark.parametrize(("header", "body"), [RESET, MOVE], ids=["reset", "move"])
def test_a_group_that_was_moved_stays_where_it_was_moved_after_a_kill(talk, header, body):
    assert with_group(talk).ask(header, body).code == 0
    talk.disk.abandon()  # as a kill does
    talk.open()

    assert offset_of(talk) == 0


@pytest.mark.parametrize(("header", "body"), [RESET, MOVE], ids=["reset", "move"])
def test_a_group_is_not_moved_while_progress_cannot_be_saved(group, header, body):
    group.disk.unwritable = "config/"
    group.ask(UpdateConsumerOffset(consumer_group="G", topic="orders", queue_id=0, commit_offset=2))
    group.wait(6_000)
    refused = group.ask(header, body)

    assert (refused.code, "cannot be saved" in refused.remark) == (14, True)
    assert offset_of(group) == 2


def test_a_pull_brings_no_progress_while_that_cannot_be_saved(group):
    group.disk.unwritable = "config/"
    group.ask(UpdateConsumerOffset(consumer_group="G", topic="orders", queue_id=0, commit_offset=2))
    group.wait(6_000)
    assert group.ask(pull_header("orders", offset=4, commit=4)).code == 0, "its messages come all the same"
    assert offset_of(group) == 2

    group.disk.unwritable = None
    group.wait(6_000)
    group.ask(pull_header("orders", offset=4, commit=4))
    assert offset_of(group) == 4
