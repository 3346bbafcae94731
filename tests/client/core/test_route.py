"""A route: what is sent to, what is read from, and in which order."""

from __future__ import annotations

import pytest

from halfmoon.client.core.route import publish_info, read_queues, route_of
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import TopicRouteData, from_json, to_json
from tests.client.scripted import route


@pytest.mark.mission("004-08")
def test_publish_info_is_the_queue_list_and_a_counter():
    info = publish_info("t", route_of(route({"broker-b": 1, "broker-a": 2})))

    assert info.queues == [MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-a", 1), MessageQueue("t", "broker-b", 0)]
    assert info.turn == 0


@pytest.mark.mission("004-04")
def test_queues_of_brokers_without_a_master_are_read_but_not_written():
    found = route_of(route({"broker-a": 1, "broker-b": 1}, slaves_only=("broker-b",)))

    assert [queue.broker_name for queue in publish_info("t", found).queues] == ["broker-a"]
    assert [queue.broker_name for queue in read_queues("t", found)] == ["broker-a", "broker-b"]


def test_permission_bits_decide_what_is_written_and_read():
    data = route({"broker-a": 2, "broker-b": 2})
    data.queue_datas[0].perm, data.queue_datas[1].perm = 4, 2

    assert {queue.broker_name for queue in publish_info("t", route_of(data)).queues} == {"broker-b"}
    assert {queue.broker_name for queue in read_queues("t", route_of(data))} == {"broker-a"}


def test_an_order_configuration_fixes_the_queues_and_their_order():
    info = publish_info("t", route_of(route(8, order="broker-b:1;broker-a:2")))

    assert [(queue.broker_name, queue.queue_id) for queue in info.queues] == [("broker-b", 0), ("broker-a", 0), ("broker-a", 1)]
    assert info.ordered


@pytest.mark.parametrize("quoted", [True, False])
def test_broker_addresses_are_read_with_quoted_and_with_raw_keys(quoted):
    text = to_json(route(4), quoted=quoted)

    assert route_of(from_json(TopicRouteData, text)).brokers == {"broker-a": {0: "broker-a:1"}}
