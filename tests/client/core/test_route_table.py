"""The routes of a client: what is cached, refreshed and forgotten."""

from __future__ import annotations

import json
from random import Random

import pytest

from halfmoon.client.core.instance import Instance
from halfmoon.client.core.nameservers import NameServers
from halfmoon.client.core.route_table import RouteTable
from halfmoon.client.core.trouble_log import TroubleLog
from halfmoon.client.settings import ProducerSettings, settings_of
from halfmoon.errors import ConnectFailed, NetworkError, NoNameServerAnswers, NoRoute, NotWritable
from halfmoon.limits import ROUTE_BROKERS_MAX, ROUTE_QUEUES_MAX
from halfmoon.wire.bodies import BadBody
from halfmoon.wire.headers.route import GetBrokerClusterInfo, GetRouteinfoByTopic
from tests.client.scripted import REFUSED, SILENT, Reply, Scripted, route, routes


def table(script: Scripted, **topics) -> RouteTable:
    script.on(GetRouteinfoByTopic, routes(**topics))
    return RouteTable(NameServers(["ns:1"], Random(1)), Random(1))


def test_a_topic_whose_brokers_all_left_has_no_route_and_none_is_kept():
    gone = route({})
    gone.absent_brokers = ["broker-a"]
    script = Scripted()
    found = table(script, t=gone)

    for ask in (found.publish_info, found.read_queues, found.refresh):
        with pytest.raises(NoRoute, match="No route info of this topic: t"):
            script.run(ask("t"))
    assert found.known("t") is None
    assert len(script.asked(GetRouteinfoByTopic)) == 3


def test_a_topic_that_may_not_be_written_to_is_not_said_to_be_missing():
    read_only, masterless = route({"broker-a": 2}), route({"broker-b": 1}, slaves_only=("broker-b",))
    read_only.queue_datas[0].perm = 4
    script = Scripted()
    found = table(script, read_only=read_only, masterless=masterless)

    with pytest.raises(NotWritable, match="topic read_only may not be written to: its permission on broker-a"):
        script.run(found.publish_info("read_only"))
    with pytest.raises(NoRoute, match="masterless cannot be looked up: no master is known of its brokers broker-b"):
        script.run(found.publish_info("masterless"))


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
    script.on(GetRouteinfoByTopic, SILENT)

    with pytest.raises(NoNameServerAnswers):
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


def test_a_broker_is_asked_where_the_route_of_another_topic_has_it_by_now():
    script = Scripted()
    found = table(script, t=route(1), other=route(1))
    script.run(found.publish_info("t"))
    script.run(found.publish_info("other"))
    assert found.any_broker("t") == "broker-a:1"

    moved = route(1)
    moved.broker_datas[0].broker_addrs = {0: "broker-a:2", 1: "broker-a:1"}
    script.on(GetRouteinfoByTopic, routes(t=route(1), other=moved))
    script.run(found.refresh("other"))
    assert found.any_broker("t") == "broker-a:2"


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


def hostile(brokers: dict[str, int], order: str = "", address: str = "a:1") -> bytes:
    """Return a route as text, for one like this cannot be made."""
    return json.dumps({
        "brokerDatas": [{"cluster": "c", "brokerName": name, "brokerAddrs": {"0": address}} for name in brokers],
        "queueDatas": [
            {"brokerName": name, "readQueueNums": count, "writeQueueNums": 1, "perm": 6} for name, count in brokers.items()
        ],
        "orderTopicConf": order,
    }).encode()  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        hostile({f"broker-{number}": 2**31 - 1 for number in range(600)}),
        hostile({"broker-a": ROUTE_QUEUES_MAX + 1}),
        hostile({f"broker-{number}": 1 for number in range(ROUTE_BROKERS_MAX + 1)}),
        hostile({"b" * 900_000: 1}),
        hostile({"broker-a": 1}, address="a" * 900_000),
        hostile({"broker-a": 1}, order=";".join(["broker-a:65536"] * 9_000)),
    ],
    ids=["queues", "queues of one", "brokers", "name", "address", "order"],
)
def test_a_route_that_costs_a_client_its_memory_is_refused_and_the_known_one_stays(text: bytes):
    script = Scripted()
    found = table(script, t=route(2))
    script.run(found.publish_info("t"))
    script.on(GetRouteinfoByTopic, Reply(body=text))

    with pytest.raises(BadBody, match="more than"):
        script.run(found.refresh("t"))

    assert len(script.run(found.publish_info("t")).queues) == 2
    with pytest.raises(NoRoute, match="more than"):
        script.run(found.publish_info("another"))


def test_all_routes_of_a_client_together_have_so_many_queues(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("halfmoon.client.core.route_table.QUEUES_MAX", 100)
    script = Scripted()
    found = table(script, **{f"t{number}": route(40) for number in range(5)})
    found.register("t0")
    for number in range(5):
        script.run(found.publish_info(f"t{number}"))
    assert [number for number in range(5) if found.known(f"t{number}")] == [0, 4]

    found.register("t4")
    with pytest.raises(NoRoute, match="all routes would name more than 100"):
        script.run(found.publish_info("t1"))
    script.on(GetRouteinfoByTopic, routes(t0=route(60), t4=route(40)))
    assert script.run(found.refresh("t0"))
