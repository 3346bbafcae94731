"""Rows of the outbox: what is written, what is read back, and what is refused before it is written."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.events.errors import PayloadRefused
from halfmoon.events.event import Event
from halfmoon.events.outbox import INSERT, PACKED_BYTES_MAX, Unreadable, order_key, pack, unpack, write
from halfmoon.events.transaction import LocalTransaction
from halfmoon.model import Message

HERE = LocalTransaction("here")
TEXT = st.text(max_size=20)
WORD = st.text(alphabet=st.characters(blacklist_categories=("Zs", "Zl", "Zp", "Cc", "Cs")), min_size=1, max_size=20)


@given(
    st.builds(
        Message,
        st.just("TP_ORDER"),
        st.binary(max_size=200),
        tag=st.none() | WORD,
        keys=st.lists(WORD, max_size=4).map(tuple),
        properties=st.dictionaries(TEXT, TEXT, max_size=4),
        flag=st.integers(-(2**31), 2**31 - 1),
        wait_store=st.booleans(),
        deliver_at=st.none() | st.integers(1, 10**15 - 1),
    )
)
def test_a_message_comes_back_as_it_was_written_under_the_events_id(message):
    found = unpack("TP_ORDER", "A1", pack(message), attempt=3)

    assert found == msgspec.structs.replace(message, msg_id="A1", attempt=3)


def test_keys_given_as_one_text_are_the_words_in_it():
    assert unpack("TP", "A1", pack(Message("TP", b"", keys="one two"))).keys == ("one", "two")


@given(st.binary(max_size=60))
def test_bytes_that_are_no_row_are_told_as_such(data):
    try:
        found = unpack("TP", "A1", data)
    except Unreadable:
        return
    assert unpack("TP", "A1", pack(found)) == found  # by chance they are one


def test_what_a_broken_row_holds_is_not_in_the_error():
    data = msgspec.msgpack.encode([1, "EC", [], {"secret": 7}, b"secret", 0, True])

    with pytest.raises(Unreadable) as caught:
        unpack("TP", "A1", data)

    assert "secret" not in str(caught.value)


def test_a_row_of_a_later_form_is_not_guessed_at():
    with pytest.raises(Unreadable, match="no message of a form known here"):
        unpack("TP", "A1", msgspec.msgpack.encode([3, None, [], {}, b"", 0, True]))


def test_a_row_of_an_older_release_is_read_and_a_delayed_one_is_no_form_of_its():
    assert unpack("TP", "A1", msgspec.msgpack.encode([1, None, [], {}, b"x", 0, True])) == Message("TP", b"x", msg_id="A1")
    assert msgspec.msgpack.decode(pack(Message("TP", b"x")))[0] == 1
    assert msgspec.msgpack.decode(pack(Message("TP", b"x", deliver_at=5)))[0] == 2


def test_a_row_has_the_events_id_its_topic_and_time():
    event = Event(id="A1", topic="TP_ORDER", code="EC_PAID", key="o-1")

    statement, values = write(None, HERE, Message("TP_ORDER", b"x"), event, 1_000)

    assert statement == INSERT
    assert {**values, "message": b""} == {
        "event_id": "A1",
        "topic": "TP_ORDER",
        "order_key": order_key("TP_ORDER", "o-1"),
        "message": b"",
        "created_ms": 1_000,
    }


@pytest.mark.parametrize(
    ("event", "message", "why"),
    [
        (Event(id="", topic="TP", code="EC"), Message("TP", b""), "event id"),
        (Event(id="A" * 65, topic="TP", code="EC"), Message("TP", b""), "event id"),
        (Event(id="A", topic="T" * 128, code="EC"), Message("T" * 128, b""), "at most 127"),
        (Event(id="A", topic="TP", code="EC"), Message("TP", b"", delay=5), "takes deliver_at, in ms"),
        (Event(id="A", topic="TP", code="EC"), Message("TP", b"x" * PACKED_BYTES_MAX), "publish a reference"),
    ],
)
def test_a_message_that_a_row_cannot_hold_is_refused_before_it_is_written(event, message, why):
    with pytest.raises(PayloadRefused, match=why):
        write(None, HERE, message, event, 0)


@given(st.text(max_size=12), st.text(max_size=12))
def test_rows_of_one_topic_and_key_share_a_number_that_every_database_holds(topic, key):
    found = order_key(topic, key)

    assert found == order_key(topic, key)
    assert (found == 0) == (key == "")
    assert 0 <= found < 2**63


def test_the_same_key_in_another_topic_is_another_order():
    assert order_key("TP_A", "k") != order_key("TP_B", "k")
