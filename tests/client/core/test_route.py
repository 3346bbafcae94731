"""Routes: what is sent to and read from, what is cached, refreshed and forgotten."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.client.core.instance import Instance
from halfmoon.client.core.nameservers import NameServers
from halfmoon.client.core.route import RouteTable, publish_info, read_queues, route_of
from halfmoon.client.core.trouble_log import TroubleLog
from halfmoon.client.settings import ProducerSettings, settings_of
from halfmoon.errors import ConnectFailed, NetworkError, NoRoute, NotWritable
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import TopicRouteData, from_json, to_json
from halfmoon.wire.headers.route import GetBrokerClusterInfo, GetRouteinfoByTopic
from tests.client.scripted import REFUSED, Reply, Scripted, route, routes


def table(script: Scripted, **topics) -> RouteTable:
    script.on(GetRouteinfoByTopic, routes(**topics))
    return RouteTable(NameServers(["ns:1"], Random(1)), Random(1))


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


def test_a_topic_that_may_not_be_written_to_is_not_said_to_be_missing():
    read_only, masterless = route({"broker-a": 2}), route({"broker-b": 1}, slaves_only=("broker-b",))
    read_only.queue_datas[0].perm = 4
    script = Scripted()
    found = table(script, read_only=read_only, masterless=masterless)

    with pytest.raises(NotWritable, match="topic read_only may not be written to: its permission on broker-a"):
        script.run(found.publish_info("read_only"))
    with pytest.raises(NoRoute, match="masterless can be learnt: no master is known of its brokers broker-b"):
        script.run(found.publish_info("masterless"))


def test_an_order_configuration_fixes_the_queues_and_their_order():
    info = publish_info("t", route_of(route(8, order="broker-b:1;broker-a:2")))

    assert [(queue.broker_name, queue.queue_id) for queue in info.queues] == [("broker-b", 0), ("broker-a", 0), ("broker-a", 1)]
    assert info.ordered


@pytest.mark.parametrize("quoted", [True, False])
def test_broker_addresses_are_read_with_quoted_and_with_raw_keys(quoted):
    text = to_json(route(4), quoted=quoted)

    assert route_of(from_json(TopicRouteData, text)).brokers == {"broker-a": {0: "broker-a:1"}}


@pytest.mark.mission("004-02")
def test_routes_are_asked_again_every_thirty_seconds_and_news_is_taken_over():
    script = Scripted()
    instance = Instance(settings_of(ProducerSettings, {"group": "P", "nameserver": "ns:1"}), "id", Random(1))
    script.on(GetRouteinfoByTopic, routes(t=route(2)))
    for operation in instance.background_work():
        script.spawn(operation)
    script.run(instance.routes.publish_info("t"))
    assert len(script.asked(GetRouteinfoByTopic)) == 1

    script.on(GetRouteinfoByTopic, routes(t=route({"broker-b": 3})))
    script.run_for(29_000)
    assert len(script.asked(GetRouteinfoByTopic)) == 1
    script.run_for(2_000)

    assert [queue.broker_name for queue in script.run(instance.routes.publish_info("t")).queues] == ["broker-b"] * 3
    assert list(instance.routes.brokers) == ["broker-b"]
    script.run_for(60_000)
    assert len(script.asked(GetRouteinfoByTopic)) == 4


def test_the_turn_goes_on_when_a_route_changes_and_nothing_happens_when_it_does_not():
    script = Scripted()
    changes = []
    found = RouteTable(NameServers(["ns:1"], Random(1)), Random(1), changes.append)
    script.on(GetRouteinfoByTopic, routes(t=route(2)))
    info = script.run(found.publish_info("t"))
    info.turn = 41

    assert script.run(found.refresh("t")) is False
    script.on(GetRouteinfoByTopic, routes(t=route(3)))
    assert script.run(found.refresh("t")) is True

    assert script.run(found.publish_info("t")).turn == 41
    assert changes == ["t", "t"]


def test_a_route_that_cannot_be_refreshed_stays():
    script = Scripted()
    found = table(script, t=route(2))
    script.run(found.publish_info("t"))
    script.on(GetRouteinfoByTopic, Reply(17))

    script.run(found.refresh_all(TroubleLog()))

    assert len(script.run(found.publish_info("t")).queues) == 2


def test_many_who_ask_for_the_same_topic_ask_the_name_server_once():
    script = Scripted()
    found = table(script, t=route(2))

    tasks = [script.spawn(found.publish_info("t")) for _ in range(50)]
    script.run_for(100)

    assert all(len(task.value.queues) == 2 for task in tasks)
    assert len(script.asked(GetRouteinfoByTopic)) == 1


def test_when_the_one_who_asked_gives_up_another_asks():
    script = Scripted()
    found = table(script, t=route(2))
    first, second = script.spawn(found.publish_info("t")), script.spawn(found.publish_info("t"))
    script.run_for(0)

    first.cancel()
    script.run_for(100)

    assert len(second.value.queues) == 2


def test_a_topic_that_nobody_knows_is_no_route_for_everybody_who_waits():
    script = Scripted()
    found = table(script)

    tasks = [script.spawn(found.publish_info("t")) for _ in range(3)]
    script.run_for(100)

    assert [type(task.error) for task in tasks] == [NoRoute] * 3


def test_a_template_gives_no_more_queues_than_asked_for():
    script = Scripted()
    found = table(script, TBW102=route({"broker-a": 8, "broker-b": 2}))

    info = script.run(found.publish_info("t", "TBW102", 4))

    assert info.write_counts == {"broker-a": 4, "broker-b": 2}


def test_a_reader_gets_the_wanted_broker_or_the_next_slave_or_any():
    script = Scripted()
    found = table(script)
    found.brokers = {"a": {0: "a0", 1: "a1"}, "b": {2: "b2"}}

    assert found.reader("a", 1) == ("a1", 1)
    assert found.reader("b", 1) == ("b2", 2)
    assert found.reader("b", 0) == ("b2", 2)
    assert found.reader("b", 0, only=True) is None
    assert found.reader("c") is None
    assert (found.master("a"), found.master("b")) == ("a0", None)


def test_a_name_server_that_fails_is_left_for_the_next_one_and_the_good_one_is_kept():
    script = Scripted()
    servers = NameServers(["ns:1", "ns:2", "ns:3"], Random(1))
    good = servers.addresses[2]
    script.on(GetBrokerClusterInfo, lambda seen: Reply() if seen.address == good else ConnectFailed("no", seen.address))

    for _ in range(3):
        script.run(servers.call(GetBrokerClusterInfo()))

    assert [seen.address for seen in script.seen] == [*servers.addresses, good, good]
    script.on(GetBrokerClusterInfo, REFUSED)
    with pytest.raises(NetworkError):
        script.run(servers.call(GetBrokerClusterInfo()))
