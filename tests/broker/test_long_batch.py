"""Tests that a broker stores a long batch as it stores its messages one at a time."""

import numpy
import pytest

from halfmoon.broker import send as send_module
from halfmoon.store import arrays
from halfmoon.store.long_items import long_items
from halfmoon.wire.record import encode_batch
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
