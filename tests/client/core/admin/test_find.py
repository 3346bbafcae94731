"""Stored messages found by key and by id."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.find import find_message, message_by_id, message_by_offset_id, messages_at, messages_by_key
from halfmoon.errors import QueryNotFound, UsageError
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import BrokerData, ClusterInfo, to_json
from halfmoon.wire.headers.pull import PullMessage, PullMessageReply, QueryMessage, QueryMessageReply, ViewMessageById
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from tests.client.core.admin.test_admin import admin
from tests.client.messages import record
from tests.client.scripted import REFUSED, Reply, Scripted

HOME, AT_HOME = "127.0.0.1:10911", "7F00000100002A9F0000000000001000"
"""A broker's address, and an id that names it."""


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


def test_a_broker_that_fails_is_named_and_does_not_hide_what_others_found():
    script, failing = Scripted(), list[str]()
    core = admin(script)
    script.on(QueryMessage, REFUSED, found(record(3, KEYS="k")))
    assert len(script.run(messages_by_key(core, "orders", "k", failing=failing))) == 1
    assert failing == ["broker-a: connect failed"]

    script.on(QueryMessage, REFUSED)
    with pytest.raises(type(REFUSED)):
        script.run(messages_by_key(core, "orders", "k", failing=failing))


def test_a_message_that_may_be_at_a_broker_that_fails_is_not_said_to_be_missing():
    script = Scripted()
    core = admin(script)
    script.on(QueryMessage, REFUSED, Reply(22), REFUSED, found(record(3)))
    with pytest.raises(type(REFUSED)):
        script.run(message_by_id(core, "orders", "ID3"))

    assert script.run(message_by_id(core, "orders", "ID3")).queue_offset == 3


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


def at_home(script: Scripted):
    """Return an administration client of a cluster whose broker is where broker ids say."""
    core = admin(script)
    script.on(GetBrokerClusterInfo, Reply(body=to_json(ClusterInfo({"broker-a": BrokerData("c", "broker-a", {0: HOME})}, {}))))
    return core


def test_a_message_is_found_with_the_name_of_its_broker_by_either_id():
    script = Scripted()
    core = at_home(script)
    script.on(ViewMessageById, Reply(body=record(5)))
    script.on(QueryMessage, found(record(1)))

    of_broker, of_sender = script.run(find_message(core, AT_HOME)), script.run(find_message(core, "ID1", "orders"))

    assert (of_broker.queue_offset, of_sender.queue_offset) == (5, 1)
    assert [seen.address for seen in script.asked(ViewMessageById)] == [HOME]
    assert of_sender.broker_name == "10.0.0.2:10911", "an address that no broker of the cluster has is its own name"


def test_an_id_has_nobody_asked_who_is_no_broker_of_the_cluster():
    script = Scripted()
    core = admin(script)
    script.on(QueryMessage, Reply(22))

    with pytest.raises(UsageError, match="no id of a broker of this cluster"):
        script.run(find_message(core, AT_HOME))
    with pytest.raises(QueryNotFound, match="no message"):
        script.run(find_message(core, AT_HOME, "orders"))
    assert not script.asked(ViewMessageById)


def test_a_message_that_is_gone_is_not_found_by_its_brokers_id():
    script = Scripted()
    core = at_home(script)
    script.on(ViewMessageById, Reply(1))

    with pytest.raises(QueryNotFound, match="may be deleted"):
        script.run(find_message(core, AT_HOME))


def test_messages_of_a_queue_are_read_at_its_master_or_where_there_is_none_at_a_slave():
    script = Scripted()
    core = admin(script)
    brokers = {"broker-a": BrokerData("c", "broker-a", {0: "broker-a:1", 1: "slave:1"}), "b": BrokerData("c", "b", {1: "slave:2"})}
    script.on(GetBrokerClusterInfo, Reply(body=to_json(ClusterInfo(brokers, {}))))
    header = PullMessageReply(suggest_which_broker_id=0, next_begin_offset=8, min_offset=0, max_offset=9)
    script.on(PullMessage, Reply(header=header, body=record(7)))

    page = script.run(messages_at(core, MessageQueue("orders", "broker-a", 0), 7))
    script.run(messages_at(core, MessageQueue("orders", "b", 0), 7, 1))

    assert [(message.queue_offset, message.broker_name) for message in page.messages] == [(7, "broker-a")]
    assert [(seen.address, seen.request.max_msg_nums) for seen in script.asked(PullMessage)] == [("broker-a:1", 32), ("slave:2", 1)]
    with pytest.raises(UsageError, match="no broker c"):
        script.run(messages_at(core, MessageQueue("orders", "c", 0), 0))


def test_a_record_that_does_not_decode_is_left_out_of_a_read_and_the_next_one_is_behind_it():
    script = Scripted()
    core = admin(script)
    header = PullMessageReply(suggest_which_broker_id=0, next_begin_offset=9, min_offset=0, max_offset=9)
    alone = PullMessageReply(suggest_which_broker_id=0, next_begin_offset=8, min_offset=0, max_offset=9)
    script.on(PullMessage, Reply(header=header, body=bytes(200)), Reply(header=alone, body=bytes(100)))

    page = script.run(messages_at(core, MessageQueue("orders", "broker-a", 0), 7))

    assert (page.messages, page.skipped, page.next_offset) == ([], (7,), 8)
