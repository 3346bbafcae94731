"""A property that holds a separator is its sender's mistake, wherever it comes: code 13, nothing stored, no traceback.

What the broker stores as it came it does not look into, as Apache's does not; these have a pair that it takes out.
"""

import logging

import pytest

from halfmoon.hot import Reader
from halfmoon.wire.headers.send import SendBatchMessage, SendMessage
from halfmoon.wire.record import BatchItem, encode_batch
from tests.broker.half import half_properties
from tests.broker.talk import send_header

BAD = "CLUSTER\x01c\x02KEYS\x01a\x01b\x02"
GOOD = "KEYS\x01a\x02"
TIMER = "TIMER_DELAY_SEC\x0160\x02"


def batch(*properties, count=1):
    return encode_batch(BatchItem(b"x" * 40, text.encode()) for text in properties * count)


def old(**changed):
    """A send with the long names of fields (10)."""
    header = send_header(**changed)
    return SendMessage(**{name: getattr(header, name) for name in SendMessage.__struct_fields__ if hasattr(header, name)})


def batched(properties=""):
    header = send_header(properties=properties, batch=True)
    return SendBatchMessage(**{name: getattr(header, name) for name in SendBatchMessage.__struct_fields__ if hasattr(header, name)})


WAYS = {
    "a plain send": (lambda: send_header(properties=BAD), b"x"),
    "a plain send with long names": (lambda: old(properties=BAD), b"x"),
    "a delayed send": (lambda: send_header(properties=f"DELAY\x013\x02{BAD}"), b"x"),
    "a send to a time": (lambda: send_header(properties=f"{TIMER}{BAD}"), b"x"),
    "a half message": (lambda: send_header(properties=half_properties(more=BAD)), b"x"),
    "a redelivery": (lambda: send_header("%RETRY%G", properties=BAD, reconsume_times=1), b"x"),
    "a delayed redelivery": (lambda: send_header("%RETRY%G", properties=f"DELAY\x013\x02{BAD}", reconsume_times=1), b"x"),
    "a message of a batch": (batched, batch(GOOD, BAD)),
    "a message of a batch of 310": (lambda: send_header(batch=True), batch(GOOD, BAD)),
    "a message of a batch that is not alike": (batched, batch(GOOD, f"TAGS\x01t\x02{GOOD}", BAD)),
    "a message of a long batch": (batched, batch(GOOD, BAD, count=700)),
    "a batch": (lambda: batched(BAD), batch(GOOD, GOOD)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_separator_inside_a_property_is_refused_in_one_line(make_talk, caplog, way, flush):
    caplog.set_level(logging.INFO, "halfmoon")
    talk = make_talk(store={"flush_disk_type": flush})
    talk.send("T", b"before")
    talk.send("%RETRY%G", b"before")
    end = talk.broker.store.end_offset
    header, body = WAYS[way]
    reply = talk.ask(header(), body)
    assert (reply.code, "contains a separator (0x01 or 0x02)" in reply.remark) == (13, True), reply.remark
    assert talk.broker.store.end_offset == end
    assert [record.getMessage() for record in caplog.records if record.exc_info or record.levelno > logging.INFO] == []
    assert talk.send("T", b"after").code == 0


def test_others_of_the_same_turn_do_not_feel_a_mistake_of_ours(talk, monkeypatch):
    talk.send("T", b"before")
    talk.connect(2)

    def broken(*_arguments):
        raise RuntimeError("planted")

    read = talk.broker.gate.reader.read
    good = talk.post(send_header(), b"good", peer=2)
    talk.post(batched(), batch(GOOD, GOOD))
    monkeypatch.setattr(Reader, "read", lambda reader, peer, *given: broken() if peer == 1 else read(peer, *given))
    talk.turn()
    assert talk.answer(good, peer=2).code == 0
    assert talk.closed == {1: "what it sent failed"}
