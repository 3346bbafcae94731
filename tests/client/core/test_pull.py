"""Replies to pulls: statuses, unpacking, the exact tag, and the broker that is asked."""

from __future__ import annotations

import zlib
from random import Random

import pytest

from halfmoon.client.core.nameservers import NameServers
from halfmoon.client.core.pull import pull, pull_result
from halfmoon.client.core.route import RouteTable
from halfmoon.errors import BrokerError, FlowControl, NetworkError, SubscriptionNotFound
from halfmoon.model import MessageQueue, PullStatus, subscription
from halfmoon.wire.command import Command, reply_command
from halfmoon.wire.headers.pull import PullMessage
from tests.client.messages import record
from tests.client.queue_of import pulled
from tests.client.scripted import Scripted

QUEUE = MessageQueue("orders", "broker-a", 0)
ALL = subscription("orders")


def result(code: int, body: bytes = b"", wanted=ALL):
    answer = pulled(code, 7, body, 9)
    return pull_result(reply_command(Command(11), answer.code, None, answer.header, body), QUEUE, wanted)


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, PullStatus.FOUND), (19, PullStatus.NO_NEW_MSG), (20, PullStatus.NO_MATCHED_MSG), (21, PullStatus.OFFSET_ILLEGAL)],
)
def test_four_codes_are_results(code, status):
    found = result(code)

    assert (found.status, found.next_offset, found.min_offset, found.max_offset, found.messages) == (status, 7, 0, 9, [])


@pytest.mark.parametrize(("code", "error"), [(24, SubscriptionNotFound), (215, FlowControl), (23, BrokerError), (1, BrokerError)])
def test_other_codes_are_errors(code, error):
    with pytest.raises(error):
        result(code)


def test_messages_come_unpacked_with_their_broker_and_the_queues_ends():
    packed = record(5, zlib.compress(b"long body"), sys_flag=0x301, tag="A")

    (message,) = result(0, packed).messages

    assert (message.body, message.sys_flag, message.broker_name) == (b"long body", 0x300, "broker-a")
    assert (message.properties["MIN_OFFSET"], message.properties["MAX_OFFSET"]) == ("0", "9")
    assert (message.msg_id, message.tag) == ("ID5", "A")


def test_a_body_that_does_not_unpack_is_left_as_it_is():
    (message,) = result(0, record(5, b"not zlib", sys_flag=1)).messages

    assert (message.body, message.sys_flag) == (b"not zlib", 1)


@pytest.mark.mission("001-09")
def test_only_exact_tags_pass():
    body = record(1, tag="Aa") + record(2, tag="BB") + record(3)

    assert [message.queue_offset for message in result(0, body, subscription("orders", "Aa || C")).messages] == [1]
    assert len(result(0, body).messages) == 3


def test_a_slave_is_never_asked_to_store_progress():
    script = Scripted()
    routes = RouteTable(NameServers(["ns:1"], Random(1)), Random(1))
    routes.brokers = {"broker-a": {0: "m", 1: "s"}}
    script.on(PullMessage, pulled(19, 0))

    for broker_id in (0, 1):
        script.run(pull(routes, "g", QUEUE, 0, ALL, count_max=1, sys_flag=3, commit_offset=5, broker_id=broker_id))

    assert [(seen.address, seen.request.sys_flag) for seen in script.seen] == [("m", 3), ("s", 2)]
    with pytest.raises(NetworkError, match="not exist"):
        script.run(pull(routes, "g", MessageQueue("orders", "gone", 0), 0, ALL, count_max=1, sys_flag=0))
