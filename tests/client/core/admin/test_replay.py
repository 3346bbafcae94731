"""Replays of dead letters: what the copy carries, where it goes, and that it goes once."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.replay import Edit, edited, replays
from halfmoon.errors import BrokerError, MessageIllegal, UsageError
from halfmoon.model import DeadLetter
from tests.client.core.admin.test_dead_letters import House
from tests.client.messages import message


def test_a_replay_is_found_again_among_many_redeliveries():
    house = House()
    house.send(b"x")
    [letter] = house.letters()
    house.level = 1
    for _ in range(9):  # each of these is three redeliveries and a new dead letter with the same id of its sender
        assert not house.replay(house.letters()[-1]).already
        house.cluster.run(ms=6_000)

    assert len(house.got) > 32
    assert house.replay(letter).already
    assert len(house.letters()) == 10
    assert house.letters()[1].replay_of == letter.offset_msg_id


def test_a_dry_run_sends_nothing_and_says_what_was_done_before():
    house = House()
    house.send(b"x")
    [letter] = house.letters()

    dry = house.replay(letter, dry_run=True)
    assert (dry.offset_msg_id, dry.already, dry.topic) == ("", False, "%RETRY%C")
    assert house.do(replays(house.admin, letter, "%RETRY%C")) == []
    sent = house.replay(letter)
    assert house.replay(letter, dry_run=True).offset_msg_id == sent.offset_msg_id


def test_a_large_body_travels_compressed_and_arrives_whole():
    house = House()
    house.send(b"large" * 100_000)
    [letter] = house.letters()
    house.works = True

    house.replay(letter)

    assert [len(one.body) for one in house.got] == [500_000, 500_000]


def test_a_topic_that_is_not_there_is_refused_and_not_made():
    house = House()
    house.send(b"x")
    [letter] = house.letters()

    with pytest.raises(BrokerError) as refused:
        house.replay(letter, to="elsewhere")
    assert refused.value.code == 17
    with pytest.raises(UsageError):
        house.replay(letter, to="SCHEDULE_TOPIC_XXXX")
    with pytest.raises(UsageError):
        house.replay(letter, to="no blanks")
    for topic in ("%DLQ%C", "%DLQ%D", "%RETRY%D"):
        with pytest.raises(UsageError, match="belongs to one group"):
            house.replay(letter, to=topic, dry_run=True)
    assert len(house.letters()) == 1


def test_what_belongs_to_a_wait_or_a_transaction_is_left_out_of_the_copy():
    stored = message(
        0, topic="%DLQ%C", RETRY_TOPIC="orders", ORIGIN_MESSAGE_ID="FIRST", DELAY="3", REAL_TOPIC="%RETRY%C", REAL_QID="0",
        TRAN_MSG="true", PGROUP="P", mine="m", MIN_OFFSET="0",
    )  # fmt: skip
    letter = DeadLetter("C", stored, "broker-a:1")

    to_group, body = edited(letter, "%RETRY%C", Edit())
    to_topic, _ = edited(letter, "orders", Edit(tag="A", properties={"mine": None}))

    origin = {"ORIGIN_MESSAGE_ID": "FIRST", "DEAD_LETTER_ID": "OFFSETID", "DEAD_LETTER_TOPIC": "%DLQ%C", "UNIQ_KEY": "ID0"}
    assert to_group == {**origin, "mine": "m", "RETRY_TOPIC": "orders"}
    assert to_topic == {**origin, "TAGS": "A"}
    assert body == b"body"


def test_a_message_without_an_id_of_its_sender_gets_one_by_which_its_replay_is_found():
    stored = message(0, topic="%DLQ%C", RETRY_TOPIC="orders")
    del stored.properties["UNIQ_KEY"]

    found, _ = edited(DeadLetter("C", stored, "broker-a:1"), "orders", Edit())

    assert found["UNIQ_KEY"] == "OFFSETID"


@pytest.mark.parametrize(
    "name", ["DELAY", "TRAN_MSG", "RETRY_TOPIC", "UNIQ_KEY", "KEYS", "TAGS", "DEAD_LETTER_ID", "ORIGIN_MESSAGE_ID"]
)
def test_properties_of_the_protocol_cannot_be_edited(name):
    with pytest.raises(MessageIllegal, match=name):
        edited(DeadLetter("C", message(0, topic="%DLQ%C"), "a:1"), "orders", Edit(properties={name: "x"}))


def test_an_edited_tag_that_no_subscription_asks_for_is_refused():
    with pytest.raises(MessageIllegal, match="cannot be subscribed to"):
        edited(DeadLetter("C", message(0, topic="%DLQ%C"), "a:1"), "orders", Edit(tag="a || b"))


def test_an_empty_body_is_refused():
    house = House()
    house.send(b"x")

    with pytest.raises(MessageIllegal):
        house.replay(house.letters()[0], body=b"")
