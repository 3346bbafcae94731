"""Properties of parked messages."""

import pytest

from halfmoon.broker.delay.properties import with_place
from halfmoon.errors import MessageRefused
from halfmoon.wire.properties import decode, encode


def test_earlier_parking_is_replaced_and_all_else_stays():
    before = encode({"KEYS": "k", "REAL_TOPIC": "old", "DELAY": "3", "TIMER_DELAY_SEC": "5"})
    assert decode(with_place(before, "T", 2, b"DELAY\x011\x02")) == {"KEYS": "k", "REAL_TOPIC": "T", "REAL_QID": "2", "DELAY": "1"}
    assert decode(with_place(before, "T", 2, b"", keep_asked=True))["TIMER_DELAY_SEC"] == "5"


def test_properties_without_a_separator_at_their_end_get_one():
    assert decode(with_place(b"A\x01b", "T", 0, b""))["A"] == "b"


def test_without_room_the_message_is_refused():
    with pytest.raises(MessageRefused, match="its properties take"):
        with_place(encode({"K": "v" * 32_750}), "T", 0, b"")
