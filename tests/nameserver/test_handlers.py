"""What is answered to each request, through the whole core and in frames."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from halfmoon.wire.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable, encode_register_body
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import Command
from tests.nameserver.house import House, MemoryDisk, register_fields, table

GOLDEN = Path(__file__).parent / "golden"
FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


# ---------------------------------------------------------------- registration and routes


def test_a_route_has_brokers_queues_and_both_spellings_of_the_flag() -> None:
    house = House()
    assert house.register(topic_sys_flag=2).code == 0
    assert house.route() == {
        "brokerDatas": [
            {"brokerAddrs": {"0": "192.0.2.7:20970"}, "brokerName": "broker-a", "cluster": "C", "enableActingMaster": False}
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSynFlag": 2, "topicSysFlag": 2, "writeQueueNums": 3}
        ],
    }


@pytest.mark.mission("004-06", "004-07")
def test_a_topic_of_several_brokers_has_the_queues_of_each_with_its_own_counts() -> None:
    house = House()
    for name, count in (("broker-a", 4), ("broker-b", 16)):
        configs = {"t": TopicConfig(topic_name="t", read_queue_nums=count, write_queue_nums=count - 1)}
        body = RegisterBrokerBody(TopicConfigTable(DataVersion(1, 5), configs))
        house.ask(103, register_fields(name), encode_register_body(body))
    route = house.route()
    assert {each["brokerName"] for each in route["brokerDatas"]} == {"broker-a", "broker-b"}
    counts = {each["brokerName"]: (each["readQueueNums"], each["writeQueueNums"]) for each in route["queueDatas"]}
    assert counts == {"broker-a": (4, 3), "broker-b": (16, 15)}


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_route_has_raw_keys_for_old_askers_and_quoted_ones_for_those_that_say_so(serialization: int) -> None:
    house = House()
    house.register()
    raw, quoted = b'{"brokerAddrs":{0:"192.0.2.7:20970"}', b'{"brokerAddrs":{"0":"192.0.2.7:20970"}'
    for version, fields, wanted in [(400, {}, raw), (401, {}, quoted), (355, {"acceptStandardJsonOnly": "true"}, quoted)]:
        reply = house.ask(105, {"topic": "t", **fields}, version=version, serialization=serialization)
        assert wanted in bytes(reply.body)
        assert b" " not in bytes(reply.body)
        assert reply.serialization == serialization


def test_a_route_names_brokers_that_left_to_those_who_ask_for_them() -> None:
    house = House()
    for name in ("broker-a", "broker-b"):
        house.register(name)
    house.ask(104, register_fields("broker-b"))
    assert "absentBrokers" not in house.route()
    reply = house.ask(105, {"topic": "t", "absentBrokers": "true"}, version=401)
    assert json.loads(bytes(reply.body))["absentBrokers"] == ["broker-b"]


@pytest.mark.parametrize("fields", [{}, {"absentBrokers": "false"}])
def test_a_topic_whose_brokers_all_left_is_unknown_to_who_does_not_ask_for_those(fields: dict[str, str]) -> None:
    house = House()
    house.register()
    house.ask(104, register_fields())
    assert house.ask(105, {"topic": "t", **fields}).code == 17
    reply = house.ask(105, {"topic": "t", "absentBrokers": "true"}, version=401)
    told = json.loads(bytes(reply.body))
    assert (reply.code, told["absentBrokers"], told["brokerDatas"], told["queueDatas"]) == (0, ["broker-a"], [], [])


def test_an_unknown_topic_is_answered_17_with_the_originals_remark() -> None:
    reply = House().ask(105, {"topic": "nope"})
    assert (reply.code, reply.remark) == (17, f"No topic route info in name server for the topic: nope{FAQ}")


def test_a_registration_is_answered_with_the_ordered_topics() -> None:
    house = House()
    house.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "t", "value": "broker-a:4"})
    assert bytes(house.register().body) == b'{"table":{"t":"broker-a:4"}}'


def test_a_slave_is_told_where_its_master_is() -> None:
    house = House()
    assert house.register(broker_id=1).fields == {}
    house.register()
    assert house.register(broker_id=1).fields == {"masterAddr": "192.0.2.7:20970", "haServerAddr": "192.0.2.7:209709"}


def test_a_deflated_registration_with_its_checksum_is_understood_and_a_wrong_checksum_refused() -> None:
    house = House()
    body = encode_register_body(table(), compressed=True)
    crc = zlib.crc32(body) & 0x7FFFFFFF
    fields = register_fields(compressed="true", bodyCrc32=str(crc))
    assert house.ask(103, {**fields, "bodyCrc32": str(crc ^ 1)}, body).remark == "crc32 not match"
    assert house.route() == 17
    assert house.ask(103, fields, body).code == 0
    assert house.route()["queueDatas"][0]["readQueueNums"] == 4


def test_the_worked_example_of_a_deflated_registration_is_understood() -> None:
    raw = bytes.fromhex(
        "00000027 7b22636f756e746572223a312c2274696d657374616d70223a313730303030303030303030307d 00000001"
        "00000012 742034203420362053494e474c455f544147 00000002 5b5d"
    )
    house = House()
    house.ask(103, register_fields(compressed="true"), zlib.compress(raw, 9))
    assert house.route()["queueDatas"][0] | {"brokerName": ""} == {
        "brokerName": "", "perm": 6, "readQueueNums": 4, "topicSynFlag": 0, "topicSysFlag": 0, "writeQueueNums": 4,
    }  # fmt: skip


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("register-*.bin")), ids=lambda path: path.stem)
def test_registrations_recorded_from_apache_brokers_are_understood(path: Path) -> None:
    house = House()
    peer = house.connect()
    house.send(peer, path.read_bytes())
    (reply,) = house.taken(peer)
    assert (reply.code, bytes(reply.body)) == (0, b'{"table":{}}')
    queues = house.route("SCHEDULE_TOPIC_XXXX")["queueDatas"][0]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (18, 18, 6)
    assert house.route("TBW102")["queueDatas"][0]["perm"] == 7
    listed = json.loads(bytes(house.ask(206).body))["topicList"]
    assert {"BenchmarkTest", "SELF_TEST_TOPIC", "DefaultCluster"} <= set(listed)


def test_a_very_old_broker_sends_the_table_alone() -> None:
    house = House()
    body = b'{"dataVersion":{"counter":1},"topicConfigTable":{"t":{"topicName":"t","readQueueNums":2,"writeQueueNums":2}}}'
    assert house.ask(103, register_fields(), body, version=36).code == 0
    assert house.route()["queueDatas"][0]["readQueueNums"] == 2


def test_topics_beyond_the_bound_are_left_out_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    house = House(topics_max=2)
    assert house.register(topics=["t", "u", "v"]).code == 0
    assert house.route("v") == 17
    assert "broker=broker-a count=1" in caplog.text


def test_a_broker_beyond_the_bound_is_refused() -> None:
    house = House(brokers_max=1)
    house.register()
    reply = house.register("broker-b")
    assert (reply.code, reply.remark) == (1, "1 brokers are registered, the bound")
    assert house.register().code == 0


def test_a_registration_without_a_body_brings_only_the_broker() -> None:
    house = House()
    assert house.ask(103, register_fields(), b"").code == 0
    clusters = json.loads(bytes(house.ask(106, version=1).body).replace(b"{0:", b'{"0":'))
    assert clusters == {
        "brokerAddrTable": {
            "broker-a": {
                "brokerAddrs": {"0": "192.0.2.7:20970"},
                "brokerName": "broker-a",
                "cluster": "C",
                "enableActingMaster": False,
            }
        },
        "clusterAddrTable": {"C": ["broker-a"]},
    }


def test_cluster_information_has_raw_keys_for_everybody() -> None:
    house = House()
    house.register()
    house.register("broker-b", 1)
    assert bytes(house.ask(106, version=479).body) == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"192.0.2.7:20970"},"brokerName":"broker-a","cluster":"C",'
        b'"enableActingMaster":false},'
        b'"broker-b":{"brokerAddrs":{1:"192.0.2.7:20981"},"brokerName":"broker-b","cluster":"C",'
        b'"enableActingMaster":false}},'
        b'"clusterAddrTable":{"C":["broker-a","broker-b"]}}'
    )


def test_a_broker_asks_for_the_version_and_counts_as_heard_when_nothing_changed() -> None:
    house = House()
    who = register_fields()
    fields = {name: who[name] for name in ("brokerName", "brokerAddr", "clusterName", "brokerId")}
    same, other = b'{"counter":1,"timestamp":1700000000000}', b'{"counter":2,"timestamp":1700000000000}'
    unknown = house.ask(322, fields, same)
    assert (unknown.fields, bytes(unknown.body)) == ({"changed": "true"}, b"")
    peer = house.connect()
    house.register(peer=peer)
    for ms in (50_000, 50_000, 50_000, 50_000):
        house.wait(ms)
        reply = house.ask(322, fields, same, peer=peer)
        assert (reply.fields, bytes(reply.body)) == ({"changed": "false"}, same)
    assert house.ask(322, fields, other, peer=peer).fields == {"changed": "true"}
    assert house.route() != 17


# ---------------------------------------------------------------- administration


def topic_list(reply: Command) -> list[str]:
    assert reply.code == 0
    found: list[str] = json.loads(bytes(reply.body))["topicList"]
    return found


def test_topics_are_listed_as_a_whole_by_cluster_by_unit_and_the_systems() -> None:
    house = House()
    house.register(topics=["none"])
    house.register("broker-b", topics=["unit"], topic_sys_flag=1)
    house.register("broker-c", topics=["sub"], topic_sys_flag=2, fields={"clusterName": "D"})
    assert topic_list(house.ask(206)) == ["none", "unit", "sub"]
    assert topic_list(house.ask(224, {"cluster": "C"})) == ["none", "unit"]
    assert topic_list(house.ask(224, {"cluster": "X"})) == []
    assert [topic_list(house.ask(code)) for code in (311, 312, 313)] == [["unit"], ["sub"], ["sub"]]
    system = house.ask(304)
    assert topic_list(system) == ["C", "broker-a", "broker-b", "D", "broker-c"]
    assert json.loads(bytes(system.body))["brokerAddr"] == "192.0.2.7:20970"


def test_the_list_of_all_topics_can_be_switched_off() -> None:
    reply = House(enable_all_topic_list=False).ask(206)
    assert (reply.code, reply.remark) == (1, "disable")


def test_the_write_permission_of_a_broker_is_wiped_and_given_back() -> None:
    house = House()
    house.register(topics=["t", "u"])
    assert house.ask(205, {"brokerName": "broker-a"}).fields == {"wipeTopicCount": "2"}
    assert house.route()["queueDatas"][0]["perm"] == 4
    house.register(topics=["t", "u"])
    assert house.route()["queueDatas"][0]["perm"] == 4
    assert house.ask(327, {"brokerName": "broker-a"}).fields == {"addTopicCount": "2"}
    assert house.route()["queueDatas"][0]["perm"] == 6
    assert house.ask(205, {"brokerName": "nobody"}).fields == {"wipeTopicCount": "0"}


def test_topics_are_deleted_and_registered_by_request() -> None:
    house = House()
    house.register()
    queues = b'{"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":2,"topicSysFlag":0,"writeQueueNums":2}]}'
    assert house.ask(217, {"topic": "x"}, queues).code == 0
    assert house.route("x")["queueDatas"][0]["readQueueNums"] == 2
    assert house.ask(216, {"topic": "x", "clusterName": "other"}).code == 0
    assert house.route("x") != 17
    assert house.ask(216, {"topic": "x", "clusterName": ""}).code == 0
    assert house.route("x") == 17


def test_the_members_of_a_broker_name_are_listed() -> None:
    house = House()
    house.register(broker_id=1)
    house.register()
    body = bytes(house.ask(901, {"clusterName": "C", "brokerName": "broker-a"}).body)
    assert body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"192.0.2.7:20970",1:"192.0.2.7:20971"},"brokerName":"broker-a","cluster":"C"}}'
    )
    assert b'"brokerAddrs":{}' in bytes(house.ask(901, {"clusterName": "C", "brokerName": "x"}).body)


# ---------------------------------------------------------------- keys, values, settings


def test_missing_values_are_answered_22() -> None:
    house = House()
    missing = house.ask(101, {"namespace": "n", "key": "k"})
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: n Key: k")
    assert house.ask(219, {"namespace": "n"}).code == 22
    house.ask(100, {"namespace": "n", "key": "k", "value": "v"})
    assert bytes(house.ask(219, {"namespace": "n"}).body) == b'{"table":{"k":"v"}}'
    assert house.ask(102, {"namespace": "n", "key": "k"}).code == 0
    assert house.ask(102, {"namespace": "n", "key": "k"}).code == 0
    assert bytes(house.ask(219, {"namespace": "n"}).body) == b'{"table":{}}'


def test_routes_carry_the_order_of_a_topic_when_switched_on_while_running_and_after_a_restart() -> None:
    disk = MemoryDisk()
    house = House(disk)
    house.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "t", "value": "broker-a:4"})
    house.register()
    assert "orderTopicConf" not in house.route()
    assert house.ask(318, body=b"orderMessageEnable=true\n").code == 0
    assert house.route()["orderTopicConf"] == "broker-a:4"
    house.stop()
    again = House(disk)
    again.register()
    assert again.route()["orderTopicConf"] == "broker-a:4"
    assert b"orderMessageEnable=true\n" in bytes(again.ask(319).body)


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"kvConfigPath=/etc/passwd", 16, "Can not update config path"),
        (b"rocketmqHome=/etc", 16, "in black list: rocketmqHome"),
        (b"orderMessageEnabel=true", 1, "did you mean 'orderMessageEnable'"),
        (b"orderMessageEnable=perhaps", 1, "true or false"),
        (b"listenPort=1", 1, "only be set at the start: port"),
        (b"scanNotActiveBrokerInterval=1", 1, "10 to 600000"),
        (b"\xff", 1, "UTF-8"),
        (b"", 0, ""),
        (b"serverWorkerThreads=8", 0, ""),
    ],
)
def test_settings_change_only_to_what_fits(body: bytes, code: int, remark: str) -> None:
    house = House(disk := MemoryDisk())
    before = house.core.settings
    reply = house.ask(318, body=body)
    assert reply.code == code
    assert remark in (reply.remark or "")
    assert house.core.settings == before
    assert disk.files == {}


def test_routes_may_wait_until_brokers_had_time_to_register() -> None:
    house = House(need_wait_for_service=True)
    house.register()
    early = house.ask(105, {"topic": "t"})
    assert (early.code, early.remark) == (1, "name server not ready")
    house.wait(45_000)
    assert house.route() != 1


@pytest.mark.parametrize("fields", [{}, {"namespace": "n"}, {"key": "k"}, {"key": "k", "value": "v"}])
def test_a_value_without_namespace_or_key_is_refused_in_rocketmqs_words(fields):
    reply = House().ask(100, fields)
    assert (reply.code, reply.remark) == (1, "namespace or key is null")


def test_two_brokers_of_one_name_are_named_once(caplog):
    house, peers = House(), []
    first, second = ({"brokerAddr": f"192.0.2.{number}:10911"} for number in (1, 2))
    for _ in range(2):
        for fields in (first, second):
            peers.append(house.connect())
            house.register(peer=peers[-1], fields=fields)
    assert [record.getMessage() for record in caplog.records] == [
        "two brokers have the name broker-a and the id 0, and clients find the one that registered last: 192.0.2.2:10911, before"
        " 192.0.2.1:10911"
    ]


def test_a_broker_that_moved_or_has_slaves_is_no_second_one(caplog):
    house = House()
    peer = house.connect()
    house.register(peer=peer, fields={"brokerAddr": "192.0.2.1:10911"})
    house.register(broker_id=1, fields={"brokerAddr": "192.0.2.3:10911"})
    house.core.lost(peer, house.instant)
    caplog.clear()
    house.register(fields={"brokerAddr": "192.0.2.2:10911"})
    assert not caplog.records
