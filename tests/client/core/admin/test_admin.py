"""Administration: what is asked of whom, and what comes of refusals."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.client.core.admin.admin import AdminCore, answers_of
from halfmoon.client.core.instance import Instance
from halfmoon.client.settings import AdminSettings, settings_of
from halfmoon.errors import BrokerError, ConsumerNotOnline, PartlyDone, PeerError, RequestTimeout, TopicNotFound, UsageError
from halfmoon.model import MessageQueue
from halfmoon.results import ClientList, ConnectedClient
from halfmoon.wire.bodies import (
    BrokerData,
    ClientConnection,
    ClusterInfo,
    ConsumerConnection,
    ConsumeStats,
    KVTable,
    OffsetWrapper,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicList,
    TopicOffset,
    TopicStatsTable,
    from_json,
    to_json,
)
from halfmoon.wire.headers.admin import GetBrokerConfig
from halfmoon.wire.headers.client import GetAllProducerInfo, GetConsumerConnectionList, GetProducerConnectionList
from halfmoon.wire.headers.group import (
    DeleteSubscriptiongroup,
    GetAllSubscriptiongroupConfig,
    GetConsumeStats,
    UpdateAndCreateSubscriptiongroup,
)
from halfmoon.wire.headers.offset import UpdateConsumerOffset
from halfmoon.wire.headers.route import (
    DeleteTopicInNamesrv,
    GetAllTopicListFromNameserver,
    GetBrokerClusterInfo,
    GetKvConfig,
    GetKvConfigReply,
    GetKvlistByNamespace,
    GetNamesrvConfig,
    GetRouteinfoByTopic,
    PutKvConfig,
    UpdateNamesrvConfig,
)
from halfmoon.wire.headers.topic import DeleteTopicInBroker, GetTopicStatsInfo, UpdateAndCreateTopic
from tests.client.scripted import REFUSED, Reply, Scripted, route, routes

ONE, TWO = (MessageQueue("orders", f"broker-{name}", 0) for name in "ab")


def admin(script: Scripted, **values) -> AdminCore:
    settings = settings_of(AdminSettings, {"nameserver": "ns:1;ns:2", **values})
    info = ClusterInfo(
        {name: BrokerData("c", name, {0: f"{name}:1"}) for name in ("broker-a", "broker-b")},
        {"c": ["broker-a", "broker-b"], "d": []},
    )
    script.on(GetBrokerClusterInfo, Reply(body=to_json(info)))
    script.on(GetRouteinfoByTopic, routes(orders=route({"broker-a": 1, "broker-b": 1})))
    for request in (UpdateAndCreateTopic, DeleteTopicInBroker, DeleteTopicInNamesrv, UpdateConsumerOffset, PutKvConfig,
                    UpdateAndCreateSubscriptiongroup, DeleteSubscriptiongroup):  # fmt: skip
        script.on(request, Reply())
    return AdminCore(Instance(settings, "admin", Random(1)))


def addresses(script, request):
    return [seen.address for seen in script.asked(request)]


def test_a_deleted_topic_is_forgotten_by_brokers_and_every_name_server():
    script = Scripted()
    core = admin(script)

    script.run(core.delete_topic("orders"))

    assert addresses(script, DeleteTopicInBroker) == ["broker-a:1", "broker-b:1"]
    assert sorted(addresses(script, DeleteTopicInNamesrv)) == ["ns:1", "ns:2"]


def test_an_empty_cluster_is_an_error():
    script = Scripted()

    with pytest.raises(UsageError, match="no broker is known in cluster 'd'"):
        script.run(admin(script).delete_topic("orders", cluster="d"))


def test_names_come_back_sorted_and_without_the_namespace():
    script = Scripted()
    core = admin(script, namespace="ns")
    script.on(GetAllTopicListFromNameserver, Reply(body=to_json(TopicList(["ns%b", "a", "%RETRY%ns%g"]))))
    table = SubscriptionGroupTable(subscription_group_table={"ns%g": SubscriptionGroupConfig("ns%g")})
    script.on(GetAllSubscriptiongroupConfig, Reply(body=to_json(table)))

    assert script.run(core.topics()) == ["%RETRY%g", "a", "b"]
    assert script.run(core.groups()) == ["g"]


def test_a_broker_is_asked_for_its_groups_which_come_by_the_names_of_users():
    script = Scripted()
    core = admin(script, namespace="ns")
    config = SubscriptionGroupConfig("ns%g", consume_enable=False)
    script.on(GetAllSubscriptiongroupConfig, Reply(body=to_json(SubscriptionGroupTable(subscription_group_table={"ns%g": config}))))

    assert script.run(core.group_configs("broker-b:1")) == {"g": config}
    assert addresses(script, GetAllSubscriptiongroupConfig) == ["broker-b:1"]


def test_an_unknown_topic_is_an_error_of_its_own():
    script = Scripted()

    with pytest.raises(TopicNotFound):
        script.run(admin(script).topic_route("ghost"))


def test_the_ends_of_all_queues_come_from_all_brokers():
    script = Scripted()
    core = admin(script)
    script.on(
        GetTopicStatsInfo,
        lambda seen: Reply(body=to_json(TopicStatsTable({ONE if "a" in seen.address[-3] else TWO: TopicOffset(0, 5)}))),
    )

    assert list(script.run(core.topic_stats("orders"))) == [ONE, TWO]


def test_the_lag_is_what_the_brokers_have_beyond_the_group():
    script = Scripted()
    core = admin(script)
    stats = [ConsumeStats({ONE: OffsetWrapper(9, 3)}), ConsumeStats({TWO: OffsetWrapper(4, 4)})]
    script.on(GetConsumeStats, *[Reply(body=to_json(one)) for one in stats])

    assert script.run(core.lag("C", "orders")) == 6
    assert addresses(script, GetConsumeStats) == ["broker-a:1", "broker-b:1"]


def test_connections_of_all_brokers_come_as_one_list_without_repeats():
    script = Scripted()
    core = admin(script)
    lists = [[ClientConnection("c1"), ClientConnection("c2")], [ClientConnection("c2"), ClientConnection("c3")]]
    script.on(GetConsumerConnectionList, *[Reply(body=to_json(ConsumerConnection(one))) for one in lists])

    assert [one.client_id for one in script.run(core.consumer_connections("C")).connection_set] == ["c1", "c2", "c3"]
    script.on(GetConsumerConnectionList, Reply(206))
    with pytest.raises(ConsumerNotOnline):
        script.run(core.consumer_connections("C"))


def producers(**ids: str) -> Reply:
    some = {group: [ProducerInfo(one, "/1.2.3.4:5", "JAVA", 407) for one in joined.split()] for group, joined in ids.items()}
    return Reply(body=to_json(ProducerTable(some)))


def test_clients_are_those_of_all_brokers_each_once_a_group():
    script = Scripted()
    core = admin(script, namespace="ns")
    script.on(GetAllProducerInfo, producers(**{"ns%P": "c1"}), producers(**{"ns%P": "c1 c2"}))
    table = SubscriptionGroupTable(subscription_group_table={name: SubscriptionGroupConfig(name) for name in ("ns%C", "ns%D")})
    script.on(GetAllSubscriptiongroupConfig, Reply(body=to_json(table)))
    online = Reply(body=to_json(ConsumerConnection([ClientConnection("c3", "/1.2.3.4:6", "GO", 409)])))
    script.on(
        GetConsumerConnectionList,
        lambda seen: online if seen.request.consumer_group == "ns%C" and seen.address < "c" else Reply(206),
    )

    found = script.run(core.clients())

    both = ["broker-a:1", "broker-b:1"]
    assert found.without_producers == []
    assert found.clients == [
        ConnectedClient("consumer", "C", "c3", "1.2.3.4:6", "GO", "V4_9_8", both),
        ConnectedClient("producer", "P", "c1", "1.2.3.4:5", "JAVA", "V4_9_7", both),
        ConnectedClient("producer", "P", "c2", "1.2.3.4:5", "JAVA", "V4_9_7", ["broker-b:1"]),
    ]


def test_the_clients_of_a_group_are_asked_for_by_its_name():
    script = Scripted()
    core = admin(script)
    connection = Reply(body=to_json(ProducerConnection([ClientConnection("c1", "1.2.3.4:5", "JAVA", 407)])))
    script.on(GetProducerConnectionList, Reply(1, remark="the producer group[G] not exist"), connection)
    script.on(GetConsumerConnectionList, Reply(206))

    assert [(each.kind, each.brokers) for each in script.run(core.clients("G")).clients] == [("producer", ["broker-b:1"])]


@pytest.mark.parametrize("answer", [Reply(3), RequestTimeout("no answer", "a")])
def test_brokers_that_list_no_producers_are_named(answer):
    script = Scripted()
    core = admin(script)
    script.on(GetAllProducerInfo, lambda seen: answer)
    script.on(GetAllSubscriptiongroupConfig, Reply(body=to_json(SubscriptionGroupTable())))

    assert script.run(core.clients(cluster="c")) == ClientList([], ["broker-a:1", "broker-b:1"])


@pytest.mark.parametrize("code", [16, 2])
def test_a_refusal_to_list_clients_is_raised(code):
    script = Scripted()
    core = admin(script)
    script.on(GetAllProducerInfo, producers())
    table = SubscriptionGroupTable(subscription_group_table={"C": SubscriptionGroupConfig("C")})
    script.on(GetAllSubscriptiongroupConfig, Reply(body=to_json(table)))
    script.on(GetConsumerConnectionList, Reply(code))

    with pytest.raises(BrokerError) as refused:
        script.run(core.clients())
    assert refused.value.code == code


def test_settings_of_a_name_server_are_read_and_changed_at_the_one_that_is_named():
    script = Scripted()
    core = admin(script)
    script.on(GetNamesrvConfig, Reply(body=b"listenPort=9876\n"))
    script.on(UpdateNamesrvConfig, Reply())

    assert script.run(core.name_server_config("ns:2")) == {"listenPort": "9876"}
    script.run(core.update_name_server_config("ns:2", {"waitSecondsForService": "60"}))

    assert addresses(script, GetNamesrvConfig) == addresses(script, UpdateNamesrvConfig) == ["ns:2"]
    assert script.asked(UpdateNamesrvConfig)[0].body == b"waitSecondsForService=60\n"


def test_a_group_is_made_and_deleted_everywhere_with_its_topics():
    script = Scripted()
    core = admin(script)

    script.run(core.create_group("C"))
    script.run(core.delete_group("C"))

    assert from_json(SubscriptionGroupConfig, script.asked(UpdateAndCreateSubscriptiongroup)[0].body).group_name == "C"
    deleted = script.asked(DeleteSubscriptiongroup)[0].request
    assert (deleted.group_name, deleted.remove_offset, deleted.clean_offset) == ("C", True, True)
    assert {seen.request.topic for seen in script.asked(DeleteTopicInBroker)} == {"%RETRY%C", "%DLQ%C"}


def test_values_are_put_at_every_name_server_and_a_missing_one_is_none():
    script = Scripted()
    core = admin(script)
    script.on(GetKvConfig, Reply(22), Reply(header=GetKvConfigReply(value="v")))
    script.on(GetKvlistByNamespace, Reply(22), Reply(body=to_json(KVTable({"k": "v"}))))

    script.run(core.put_kv("n", "k", "v"))

    assert sorted(addresses(script, PutKvConfig)) == ["ns:1", "ns:2"]
    assert [script.run(core.kv("n", "k")) for _ in range(2)] == [None, "v"]
    assert [script.run(core.kv_list("n")) for _ in range(2)] == [{}, {"k": "v"}]


# ---------------------------------------------------------------- messages


def test_the_answers_of_brokers_are_taken_without_one_that_fails_and_it_is_named_where_that_is_wanted():
    error, long = RequestTimeout("late", "b:1"), BrokerError("x" * 100_000)
    failing: list[str] = []

    assert answers_of([("a", 1), ("b", error), ("c", long), ("d", 2)], failing) == [1, 2]
    assert failing[0] == "b: late"
    assert len(failing[1]) < 600
    with pytest.raises(RequestTimeout):
        answers_of([("a", 1), ("b", error)], None)
    with pytest.raises(RequestTimeout):
        answers_of([("b", error)], [])
    with pytest.raises(ZeroDivisionError):  # our own mistakes are never a broker's
        answers_of([("a", 1), ("b", ZeroDivisionError())], [])
    assert answers_of([], []) == []


def test_groups_of_the_other_brokers_are_listed_where_one_fails():
    script = Scripted()
    core = admin(script)
    table = SubscriptionGroupTable(subscription_group_table={"g": SubscriptionGroupConfig("g")})
    good = Reply(body=to_json(table))
    script.on(GetAllSubscriptiongroupConfig, lambda seen: good if seen.address == "broker-a:1" else Reply(body=b"[["))
    failing: list[str] = []

    assert script.run(core.groups(failing=failing)) == ["g"]
    assert [text.partition(": ")[0] for text in failing] == ["broker-b:1"]
    with pytest.raises(PeerError):
        script.run(core.groups())


def test_a_name_server_that_is_asked_as_a_broker_is_named():
    script = Scripted()
    core = admin(script)
    script.on(GetBrokerConfig, Reply(3))

    with pytest.raises(UsageError, match=r"^other:9876 is a name server, not a broker$"):
        script.run(core.broker_config("other:9876"))


def test_producers_are_found_at_one_broker_though_another_knows_none():
    script = Scripted()
    core = admin(script)
    known = Reply(body=to_json(ProducerConnection([ClientConnection("p@1", "10.0.0.9:1", "JAVA", 401)])))
    script.on(GetProducerConnectionList, lambda seen: known if seen.address == "broker-b:1" else Reply(1, remark="not exist"))

    assert [one.client_id for one in script.run(core.producer_connections("P", "orders")).connection_set] == ["p@1"]
    script.on(GetProducerConnectionList, Reply(1, remark="not exist"))
    with pytest.raises(BrokerError, match="not exist"):
        script.run(core.producer_connections("P", "orders"))


def test_ends_of_a_topic_at_all_brokers_take_one_route():
    script = Scripted()
    core = admin(script)
    script.on(GetTopicStatsInfo, lambda seen: Reply(body=to_json(TopicStatsTable({
        MessageQueue("orders", seen.address.partition(":")[0], 0): TopicOffset(min_offset=0, max_offset=1)
    }))))  # fmt: skip

    assert len(script.run(core.topic_stats("orders"))) == 2
    assert len(script.asked(GetRouteinfoByTopic)) == 1


def test_a_broker_that_refuses_to_report_progress_is_an_error_and_not_a_smaller_lag():
    script = Scripted()
    core = admin(script)
    stats = ConsumeStats({ONE: OffsetWrapper(broker_offset=10, consumer_offset=4)})
    script.on(GetConsumeStats, lambda seen: Reply(body=to_json(stats)) if seen.address == "broker-a:1" else Reply(2, remark="busy"))

    with pytest.raises(BrokerError, match="busy"):
        script.run(core.lag("C", "orders"))


def test_a_group_is_deleted_wherever_it_can_be_and_the_topics_stay_known_until_it_is_everywhere():
    script = Scripted()
    core = admin(script)
    script.on(DeleteSubscriptiongroup, lambda seen: REFUSED if seen.address == "broker-a:1" else Reply())

    with pytest.raises(PartlyDone, match="done at broker-b, but not at broker-a"):
        script.run(core.delete_group("C"))
    assert script.asked(DeleteTopicInNamesrv) == []
