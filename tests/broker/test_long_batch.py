"""Tests that a broker stores a long batch as it stores its messages one at a time."""

import numpy
import pytest

from halfmoon.broker import batchpublishing
from halfmoon.broker import send as send_module
from halfmoon.errors import SystemBusy
from halfmoon.store import arrays
from halfmoon.store.long_items import long_count, long_items
from halfmoon.wire.record import decode_records, encode_batch
from tests.broker.batch import Driver, body_of
from tests.broker.talk import Talk, send_header


def test_a_long_batch_is_read_in_columns_and_stored_as_by_the_plain_road(tmp_path, monkeypatch: pytest.MonkeyPatch):
    text = "KEYS\x01{0}\x02TAGS\x01{1}\x02WAIT\x01true\x02UNIQ_KEY\x01{0:032}\x02"
    items = [(b"m" * (k % 90), text.format(k, k % 3).encode(), k) for k in range(900)]
    header = send_header("TopicTest", properties="a\x01b\x02WAIT\x01true", batch=True, reconsume_times=3, sys_flag=0x301)
    columns = []
    monkeypatch.setattr(send_module, "long_items", lambda *given: columns.append(long_items(*given)) or columns[-1])

    def found(with_numpy: bool) -> list[object]:
        monkeypatch.setattr(arrays, "np", numpy if with_numpy else None)
        talk = Talk(tmp_path / str(with_numpy))
        talk.send("TopicTest")
        reply = talk.ask(header, encode_batch(items))
        return [reply.code, reply.fields, *(bytes(talk.pull("TopicTest", offset=at).body) for at in range(1, 901, 32))]

    assert found(True) == found(False)
    assert [None if each is None else len(each.bodies) for each in columns] == [900]


TEXTS = [[f"{piece}-{k}" + "x" * (k % 50) for k in range(700)] for piece in range(3)]

ALL = [text for texts in TEXTS for text in texts]


def stored(talk: Talk) -> list:
    """Return what consumers see behind the first message."""
    store, found = talk.broker.store, []
    while len(found) < store.queue_max("orders", 0) - 1:
        pieces = store.read("orders", 0, 1 + len(found), 10_000).pieces
        found += [record for piece in pieces for record in decode_records(piece)]
    return found


def of_batch(talk: Talk) -> Driver:
    """Return the driver of a batch of three long pieces that is decided."""
    talk.send("orders")
    driver = Driver(talk)
    for texts in TEXTS:
        driver.stored(0, "a", *texts)
    driver.vote(0, "a")
    driver.decide(0, "a")
    return driver


def test_long_pieces_of_a_batch_transaction_are_published_as_one_at_a_time(tmp_path, monkeypatch: pytest.MonkeyPatch):
    used = []
    monkeypatch.setattr(send_module, "long_items", lambda *given: used.append("items") or long_items(*given))
    monkeypatch.setattr(batchpublishing, "long_count", lambda *given: used.append("count") or long_count(*given))

    def found(with_numpy: bool) -> list:
        monkeypatch.setattr(arrays, "np", numpy if with_numpy else None)
        talk = Talk(tmp_path / str(with_numpy))
        assert of_batch(talk).apply(0, "a").count == 2100
        return stored(talk)

    columns = found(True)
    assert used == ["count"] * 3 + ["items"] * 3
    assert columns == found(False)
    assert [message.body.decode() for message in columns] == ALL
    assert len({message.prepared_transaction_offset for message in columns}) == 2100


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_long_pieces_are_there_once_wherever_publishing_is_cut_off(tmp_path, monkeypatch: pytest.MonkeyPatch, fails_at: int):
    arrays.load()
    talk = Talk(tmp_path)
    driver = of_batch(talk)
    append, left = talk.broker.sends.append, [fails_at]

    def refusing(*given):
        left[0] -= 1
        if left[0] < 0:
            raise SystemBusy("the store has no room now")
        return append(*given)

    monkeypatch.setattr(talk.broker.sends, "append", refusing)
    with pytest.raises((AssertionError, AttributeError)):  # refused, or no answer yet: it is being published
        driver.apply(0, "a")
    talk.restart()
    talk.wait(60_000)

    assert driver.apply(0, "a").result == "APPLIED"
    assert [message.body.decode() for message in stored(talk)] == ALL


def test_a_long_piece_that_is_none_is_refused(tmp_path):
    arrays.load()
    talk = Talk(tmp_path)
    talk.send("orders")
    driver, body = Driver(talk), body_of(*TEXTS[0])

    assert driver.prepare(0, "a", *TEXTS[0], body=body[:-1]).code == 13
    assert driver.prepare(0, "a", *TEXTS[0][1:], body=body).code == 13
    assert driver.prepare(0, "a", *TEXTS[0], body=body_of(*TEXTS[0], properties=b"TRAN_MSG\x01true\x02")).code == 16
    assert driver.prepare(0, "a", *TEXTS[0], body=bytes(talk.broker.sends.message_bytes_max + 1)).code == 13
