"""Sends are read in groups or one by one, and are refused alike: each refusal both ways, for each kind of send."""

from __future__ import annotations

import pytest

from halfmoon.broker.names import HALF_TOPIC
from halfmoon.columns.reading import Reader
from halfmoon.hot import NATIVE
from halfmoon.ports import DiskUsage
from halfmoon.wire.codes import TRANSACTION_PREPARED
from halfmoon.wire.headers.topic import UpdateAndCreateTopic
from halfmoon.wire.properties import encode
from halfmoon.wire.record import BatchItem, encode_batch
from tests.broker.half import TOPIC, half_properties, stored
from tests.broker.talk import START_MS, send_header


def plain(topic, body, queue_id):
    return send_header(topic, queue_id=queue_id, properties="UNIQ_KEY\x01u1\x02WAIT\x01true\x02"), body


def half(topic, body, queue_id):
    return send_header(topic, queue_id=queue_id, properties=half_properties(), sys_flag=TRANSACTION_PREPARED), body


def batch(topic, body, queue_id):
    return send_header(topic, queue_id=queue_id, properties="WAIT\x01true\x02", batch=True), encode_batch(
        [BatchItem(body, encode({"KEYS": "k"}))]
    )


def opened(talk):
    """Have the reader take what is sent to the queue, as if sends to it had passed the gate."""
    talk.ask(*plain(TOPIC, b"x" * 100_000, 5000))  # refused; from now on topics are as the reader knows them
    reader = talk.broker.gate.reader
    reader.open(TOPIC, 3)
    reader.open_halves(TOPIC, 3, encode({"CLUSTER": "c", "REAL_TOPIC": TOPIC, "REAL_QID": "3"}))
    reader.open_batch(b"WAIT\x01true\x02", encode({"CLUSTER": "c"}), wait=True)


def full(talk):
    talk.disk.usage = lambda: DiskUsage(100, 1)
    talk.wait(20_000)


NOTHING = lambda talk: None  # noqa: E731
REFUSALS = {
    "too early": ({"start_accept_ms": START_MS + 3_600_000}, NOTHING, TOPIC, b"x", 3),
    "the disk is full": ({}, full, TOPIC, b"x", 3),
    "no such queue": ({}, NOTHING, TOPIC, b"x", 5000),
    "no topic's name": ({}, NOTHING, "a b", b"x", 0),
    "the broker's own topic": ({}, NOTHING, HALF_TOPIC, b"x", 0),
    "too large": ({"message_bytes_max": 70_000}, NOTHING, TOPIC, bytes(80_000), 3),
}


@pytest.mark.parametrize("kind", [plain, half, batch])
@pytest.mark.parametrize("why", REFUSALS)
def test_a_send_is_refused_alike_in_a_group_and_alone(make_talk, monkeypatch, why, kind):
    settings, prepare, topic, body, queue_id = REFUSALS[why]
    store = {name: value for name, value in settings.items() if name == "message_bytes_max"}
    talk = make_talk(store=store or None, **{name: value for name, value in settings.items() if name not in store})
    if why != "too early":
        assert talk.ask(*half(TOPIC, b"first", 3)).code == talk.ask(*plain(TOPIC, b"first", 3)).code == 0  # queues are there
    prepare(talk)
    if queue_id == 3 and topic == TOPIC:
        opened(talk)
    before = len(stored(talk, TOPIC, 3)), len(stored(talk, HALF_TOPIC))
    gate, taken = talk.broker.gate, []
    store_groups = gate.store_groups
    monkeypatch.setattr(gate, "store_groups", lambda groups, now: (taken.extend(groups), store_groups(groups, now)))
    quick = talk.ask(*kind(topic, body, queue_id))
    early = why == "too early" and NATIVE is None  # all pass the steps one by one
    assert len(taken) == (queue_id == 3 and topic == TOPIC and why != "too large" and not early)  # the size is looked at before
    talk.broker.gate.reader.close()
    general = talk.ask(*kind(topic, body, queue_id))

    assert (quick.code, quick.remark) == (general.code, general.remark)
    assert quick.code != 0
    assert (len(stored(talk, TOPIC, 3)), len(stored(talk, HALF_TOPIC))) == before


def test_half_messages_are_rejected(make_talk):
    talk = make_talk(reject_transactions=True)
    for _ in range(2):
        assert talk.ask(*half(TOPIC, b"x", 3)).code == 16
    assert stored(talk, HALF_TOPIC) == []


@pytest.mark.parametrize("oneway", [True, False])
def test_a_producer_that_sends_without_waiting_loses_nothing(make_talk, oneway):
    talk, count = make_talk(), 12_000
    talk.ask(*plain(TOPIC, b"first", 0))
    for number in range(count):
        talk.post(*plain(TOPIC, b"%d" % number, 0), oneway=oneway)
        if number % 4_000 == 3_999:  # no turn of the loop reads everything
            talk.broker.commit(talk.instant)
    talk.turn()

    assert len(stored(talk, TOPIC)) == count + 1
    assert {command.code for command in talk.received[1]} == (set() if oneway else {0})


def test_a_mistake_while_the_sends_of_a_turn_are_stored_answers_all_of_them(make_talk, monkeypatch):
    talk = make_talk()
    talk.ask(*plain(TOPIC, b"first", 0))
    monkeypatch.setattr(talk.broker.store, "append_all", lambda *_, **__: 1 / 0)
    asked = [talk.post(*plain(TOPIC, b"x", 0), peer=peer) for peer in (1, 2)]
    talk.turn()

    answers = [talk.answer(opaque, peer=peer) for opaque, peer in zip(asked, (1, 2))]
    assert [(answer.code, "ZeroDivisionError" in answer.remark) for answer in answers] == [(1, True)] * 2


@pytest.mark.parametrize("kind", [plain, half, batch])
def test_an_open_queue_that_its_topic_loses_takes_nothing_more(make_talk, monkeypatch, kind):
    talk = make_talk()
    monkeypatch.setattr(talk.broker.gate, "reader", Reader(b"", 0))  # every send passes the gate
    monkeypatch.setattr("halfmoon.broker.send.gate.OPEN_MAX", 1)
    talk.broker.topics.ensure("Shrinking", 4, talk.now)
    assert [talk.ask(*kind("Shrinking", b"x", queue_id)).code for queue_id in (3, 0, 3, 0, 3)] == [0] * 5

    talk.ask(UpdateAndCreateTopic(
        topic="Shrinking", default_topic="TBW102", read_queue_nums=2, write_queue_nums=2, perm=6, topic_filter_type="SINGLE_TAG",
        order=False,
    ))  # fmt: skip
    assert [talk.ask(*kind("Shrinking", b"x", queue_id)).code for queue_id in (3, 0)] == [1, 0]
