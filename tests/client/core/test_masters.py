"""Queues of a topic whose broker is gone: they are waited for as long as a broker is missed."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.client.core.instance import Instance
from halfmoon.client.core.masters import queues
from halfmoon.client.settings import ProducerSettings, settings_of
from halfmoon.errors import NoRoute
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import BrokerData, ClusterInfo, to_json
from halfmoon.wire.headers.route import GetBrokerClusterInfo, GetRouteinfoByTopic
from tests.client.scripted import REFUSED, Reply, Scripted, route

THERE = BrokerData("c", "broker-a", {0: "broker-a:1"})
GONE = Reply(17, remark="No topic route info")
"""A name server's answer for a topic that is not there, or whose broker is not."""


def cluster(*brokers: BrokerData) -> Reply:
    names = [broker.broker_name for broker in brokers]
    return Reply(body=to_json(ClusterInfo(dict(zip(names, brokers, strict=True)), {"c": names})))


def asked(script: Scripted, retries_max: int = 5) -> list[MessageQueue]:
    instance = Instance(settings_of(ProducerSettings, {"group": "P", "nameserver": "ns:1"}), "jobs", Random(1))
    wanted = queues(instance.name_servers, "orders", lambda: instance.routes.publish_info("orders"), retries_max)
    found: list[MessageQueue] = script.run(wanted)
    return found


def test_the_queues_of_a_topic_are_waited_for_while_no_broker_is_known():
    script = Scripted()
    script.on(GetBrokerClusterInfo, cluster(), cluster(), cluster(THERE))
    script.on(GetRouteinfoByTopic, GONE, GONE, GONE, Reply(body=to_json(route(2))))

    assert asked(script) == [MessageQueue("orders", "broker-a", queue) for queue in (0, 1)]


def test_the_queues_of_a_topic_are_waited_for_while_a_broker_has_no_master():
    script = Scripted()
    script.on(GetBrokerClusterInfo, cluster(THERE, BrokerData("c", "broker-b", {1: "broker-b:2"})), REFUSED, cluster(THERE))
    script.on(GetRouteinfoByTopic, GONE, GONE, GONE, Reply(body=to_json(route(1))))

    assert len(asked(script)) == 1


def test_a_topic_that_no_broker_has_is_not_waited_for():
    script = Scripted()
    script.on(GetBrokerClusterInfo, cluster(THERE))
    script.on(GetRouteinfoByTopic, GONE)

    with pytest.raises(NoRoute):
        asked(script)
    assert len(script.asked(GetRouteinfoByTopic)) == 2


def test_queues_are_waited_for_as_often_as_requests_are_repeated():
    script = Scripted()
    script.on(GetBrokerClusterInfo, cluster())
    script.on(GetRouteinfoByTopic, GONE)

    with pytest.raises(NoRoute):
        asked(script, retries_max=2)
    assert len(script.asked(GetRouteinfoByTopic)) == 3
