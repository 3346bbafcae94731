"""Stored messages found by key and by id."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.find import message_by_id, message_by_offset_id, messages_by_key
from halfmoon.errors import QueryNotFound
from halfmoon.wire.headers.pull import QueryMessage, QueryMessageReply, ViewMessageById
from tests.client.core.admin.test_admin import admin
from tests.client.messages import record
from tests.client.scripted import REFUSED, Reply, Scripted


def found(*records: bytes) -> Reply:
    return Reply(header=QueryMessageReply(index_last_update_timestamp=0, index_last_update_phyoffset=0), body=b"".join(records))


def test_messages_by_key_are_those_that_carry_exactly_the_key_over_all_brokers():
    script = Scripted()
    core = admin(script)
    script.on(QueryMessage, found(record(1, KEYS="k j"), record(2, KEYS="kk")), found(record(3, KEYS="k")))

    messages = script.run(messages_by_key(core, "orders", "k"))

    assert [message.queue_offset for message in messages] == [1, 3]
    asked = script.asked(QueryMessage)[0].request
    assert (asked.unique_key_query, asked.max_num, asked.begin_timestamp) == (False, 64, 0)


def test_a_broker_that_fails_does_not_hide_what_others_found():
    script = Scripted()
    core = admin(script)
    script.on(QueryMessage, REFUSED, found(record(3, KEYS="k")))
    assert len(script.run(messages_by_key(core, "orders", "k"))) == 1

    script.on(QueryMessage, REFUSED)
    with pytest.raises(type(REFUSED)):
        script.run(messages_by_key(core, "orders", "k"))


def test_a_message_is_found_by_the_senders_id_and_by_the_brokers():
    script = Scripted()
    core = admin(script)
    script.on(QueryMessage, found(record(1)), Reply(22))
    script.on(ViewMessageById, Reply(body=record(5)))

    assert script.run(message_by_id(core, "orders", "ID1")).queue_offset == 1
    assert script.run(message_by_offset_id(core, "7F00000100002A9F0000000000001000")).queue_offset == 5
    seen = script.asked(ViewMessageById)[0]
    assert (seen.address, seen.request.offset) == ("127.0.0.1:10911", 4096)
    with pytest.raises(QueryNotFound):
        script.run(message_by_id(core, "orders", "nothing"))
