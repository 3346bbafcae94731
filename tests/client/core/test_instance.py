"""A client towards its brokers: ids, heartbeats, leaving, and answers to what brokers ask."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.client.core.instance import Instance, client_id
from halfmoon.client.settings import ClientSettings, ProducerSettings, settings_of
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import (
    BrokerData,
    ConsumerRunningInfo,
    ConsumerStatus,
    HeartbeatData,
    QueueData,
    ResetOffsetBody,
    TopicRouteData,
    from_json,
    to_json,
)
from halfmoon.wire.codes import Language
from halfmoon.wire.command import Command, request_command
from halfmoon.wire.headers.client import (
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    HeartBeat,
    NotifyConsumerIdsChanged,
    UnregisterClient,
)
from halfmoon.wire.headers.offset import ResetConsumerClientOffset
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from tests.client.queue_of import ME, Queues, listening
from tests.client.scripted import REFUSED, Reply, Scripted, route, routes
from tools import generate_protocol

QUEUE = MessageQueue("orders", "broker-a", 0)


def producing(found=None) -> tuple[Scripted, Instance]:
    """A producer that finds this route of topic t, by default one to ``broker-a``."""
    script = Scripted()
    instance = Instance(settings_of(ProducerSettings, {"group": "P", "nameserver": "ns:1"}), "id", Random(1))
    instance.producer_group = "P"
    script.on(GetRouteinfoByTopic, routes(t=found or route(1)))
    script.on(HeartBeat, Reply())
    script.on(UnregisterClient, Reply())
    for operation in instance.background_work():
        script.spawn(operation)
    return script, instance


@pytest.mark.mission("004-03")
def test_heartbeats_with_the_producer_group_go_to_every_master_every_thirty_seconds():
    script, instance = producing(route({"broker-a": 1, "broker-b": 1, "broker-c": 1}, slaves_only=("broker-c",)))

    script.run(instance.routes.publish_info("t"))
    script.run_for(70_000)

    beats = script.asked(HeartBeat)
    assert {seen.address for seen in beats} == {"broker-a:1", "broker-b:1"}
    assert len(beats) == 6
    data = from_json(HeartbeatData, beats[0].body)
    assert data.client_id == "id"
    assert [one.group_name for one in data.producer_data_set] == ["CLIENT_INNER_PRODUCER", "P"]


def test_a_new_broker_hears_of_us_at_once():
    script, instance = producing()

    script.run(instance.routes.publish_info("t"))
    script.run_for(10)

    assert len(script.asked(HeartBeat)) == 1


def test_a_broker_whose_connection_was_lost_hears_of_us_when_it_is_back():
    script, instance = producing()
    instance.connected("broker-a:1")
    script.run(instance.routes.publish_info("t"))
    script.run_for(1_000)
    assert len(script.asked(HeartBeat)) == 1

    instance.connected("broker-a:1")
    script.run_for(1_000)

    assert len(script.asked(HeartBeat)) == 2


def of_pair(master: str, slave: str) -> TopicRouteData:
    """A topic of a broker with two members."""
    return TopicRouteData([BrokerData("c", "broker-a", {0: master, 1: slave})], [QueueData("broker-a", 1, 1, 6)])


@pytest.mark.parametrize("away_ms", [0, 2_500, 9_000])
def test_the_next_master_of_a_pair_hears_soon_of_a_producer_that_sends_nothing(away_ms):
    script, instance = producing(of_pair("first:1", "second:1"))
    script.run(instance.routes.publish_info("t"))
    script.run_for(1_000)

    instance.disconnected("first:1")
    script.run_for(away_ms)
    script.on(GetRouteinfoByTopic, routes(t=of_pair("second:1", "first:1")))
    script.run_for(2_500)

    assert script.asked(HeartBeat)[-1].address == "second:1"


@pytest.mark.parametrize("member", [True, False], ids=["it is back", "it has no other member"])
def test_a_lost_master_that_is_back_or_alone_is_not_looked_for(member):
    script, instance = producing(of_pair("first:1", "second:1") if member else route(1))
    script.run(instance.routes.publish_info("t"))
    script.run_for(1_000)
    address = "first:1" if member else "broker-a:1"

    instance.disconnected(address)
    if member:
        instance.connected(address)
    script.run_for(10_000)

    assert len(script.asked(GetRouteinfoByTopic)) == 1


def test_a_master_that_nobody_follows_is_looked_for_no_longer_than_routes_are_kept():
    script, instance = producing(of_pair("first:1", "second:1"))
    script.run(instance.routes.publish_info("t"))
    instance.disconnected("first:1")
    script.run_for(120_000)
    looked = len(script.asked(GetRouteinfoByTopic))
    assert 20 <= looked <= 40

    script.run_for(120_000)
    assert len(script.asked(GetRouteinfoByTopic)) <= looked + 5


def test_a_heartbeat_that_fails_does_not_stop_the_others():
    script, instance = producing(route({"broker-a": 1, "broker-b": 1}))
    script.on(HeartBeat, REFUSED, Reply())
    script.run(instance.routes.publish_info("t"))

    script.run_for(31_000)

    assert len(script.asked(HeartBeat)) == 4


def test_a_broker_that_was_killed_while_we_told_it_of_us_hears_of_us_upon_the_next_connection():
    script, instance = producing()
    script.on(HeartBeat, Reply(), REFUSED, Reply())
    script.run(instance.routes.publish_info("t"))
    script.run_for(1_000)
    instance.connected("broker-a:1")  # the broker is about to be killed, and hangs up on the heartbeat
    script.run_for(1_000)
    assert len(script.asked(HeartBeat)) == 2

    instance.connected("broker-a:1")
    script.run_for(10)
    assert len(script.asked(HeartBeat)) == 3


def test_a_broker_that_hangs_up_on_every_heartbeat_is_not_asked_in_a_circle():
    script, instance = producing()

    def hang_up(seen):
        instance.connected("broker-a:1")  # the heartbeat's own connection
        return REFUSED

    script.on(HeartBeat, hang_up)
    script.run(instance.routes.publish_info("t"))
    script.run_for(29_000)

    assert len(script.asked(HeartBeat)) == 1


def test_leaving_tells_the_brokers_that_know_us():
    script, instance = producing()
    script.run(instance.routes.publish_info("t"))
    script.run_for(10)

    script.run(instance.leave())

    (seen,) = script.asked(UnregisterClient)
    assert (seen.request.client_id, seen.request.producer_group, seen.request.consumer_group) == ("id", "P", None)


def consuming():
    script = Scripted()
    queues = Queues(script)
    return script, queues, listening(script, lambda messages: None)


def asked(core, request, body: bytes = b"", *, oneway: bool = False):
    return core.instance.asked("broker-a:1", request_command(request, body, opaque=9, oneway=oneway))


def test_a_notice_of_members_shares_out_at_once_and_of_other_groups_does_nothing():
    script, queues, core = consuming()
    queues.members = ("0",)

    assert asked(core, NotifyConsumerIdsChanged(consumer_group="X"), oneway=True) is None
    script.run_for(10)
    assert core.held
    assert asked(core, NotifyConsumerIdsChanged(consumer_group="C"), oneway=True) is None
    script.run_for(10)

    assert not core.held


def test_a_reset_comes_back_as_an_operation():
    script, queues, core = consuming()
    queues.fill(5)
    body = to_json(ResetOffsetBody({QUEUE: 0}))
    request = ResetConsumerClientOffset(topic="orders", group="C", timestamp=1, is_force=False)

    script.run(asked(core, request, body, oneway=True))
    script.run_for(10)

    assert core.consumed_count == 5


def test_progress_and_state_are_answered():
    _, _, core = consuming()

    status = asked(core, GetConsumerStatusFromClient(topic="orders", group="C"))
    info = asked(core, GetConsumerRunningInfo(consumer_group="C", client_id=ME))
    unknown = asked(core, GetConsumerRunningInfo(consumer_group="X", client_id=ME))

    assert from_json(ConsumerStatus, status.body).message_queue_table == {QUEUE: core.offsets.memory(QUEUE)}
    found = from_json(ConsumerRunningInfo, info.body)
    assert set(found.mq_table) == set(core.held)
    assert {one.topic for one in found.subscription_set} == {"orders", "%RETRY%C"}
    assert found.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert (info.code, info.opaque, info.flag & 1, info.language) == (0, 9, 1, Language.PYTHON)
    assert unknown.code == 1


@pytest.mark.parametrize(("wanted", "shown"), [(True, "main"), (False, None), (None, None)])
def test_stacks_are_told_only_when_they_are_asked_for(wanted, shown):
    _, _, core = consuming()
    core.instance.stacks = lambda: "main"

    info = asked(core, GetConsumerRunningInfo(consumer_group="C", client_id=ME, jstack_enable=wanted))

    assert from_json(ConsumerRunningInfo, info.body).jstack == shown


def test_the_reference_page_says_what_clients_answer():
    _, _, core = consuming()

    assert {*core.instance.on_asked, 39, 326} == set(generate_protocol.CLIENT)


@pytest.mark.parametrize(("flag", "code"), [(0, 3), (2, None)])
def test_what_it_does_not_know_it_says_unless_nobody_listens(flag, code):
    _, _, core = consuming()

    answer = core.instance.asked("broker-a:1", Command(999, flag=flag))

    assert (answer.code if answer else None) == code


def test_a_request_that_it_cannot_read_is_answered_with_a_reason():
    _, _, core = consuming()

    answer = core.instance.asked("broker-a:1", Command(307))

    assert answer.code == 1
    assert "consumerGroup" in answer.remark


@pytest.mark.parametrize(
    ("values", "stable", "expected"),
    [
        ({}, False, "10.0.0.1@7#1"),
        ({}, True, "10.0.0.1@DEFAULT"),
        ({"instance_name": "mine"}, False, "10.0.0.1@mine"),
        ({"client_ip": "1.2.3.4", "unit_name": "u"}, False, "1.2.3.4@7#1@u"),
    ],
)
def test_client_ids_are_built_as_java_builds_them(values, stable, expected):
    assert client_id("10.0.0.1", ClientSettings(**values), "7#1", stable=stable) == expected
