"""Tests of the bodies about topics (`wire.bodies.topics`): routes for all clients, and registrations plain and deflated."""

from __future__ import annotations

import json
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.wire.bodies import (
    BadBody,
    BrokerData,
    ClusterInfo,
    DataVersion,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
    decode_register_body,
    encode_register_body,
    from_json,
    to_json,
)
from halfmoon.wire.json import OBJECTS_MAX

REGISTERED = RegisterBrokerBody(TopicConfigTable(DataVersion(1, 1700000000000), {"t": TopicConfig("t", 4, 4, 6)}))
DEFLATED = bytes.fromhex(
    """00 00 00 27 7b 22 63 6f 75 6e 74 65 72 22 3a 31
    2c 22 74 69 6d 65 73 74 61 6d 70 22 3a 31 37 30
    30 30 30 30 30 30 30 30 30 30 7d 00 00 00 01 00
    00 00 12 74 20 34 20 34 20 36 20 53 49 4e 47 4c
    45 5f 54 41 47 00 00 00 02 5b 5d"""
)


# ---------------------------------------------------------------- routes


def test_a_route_has_raw_broker_ids_or_quoted_ones():
    broker = BrokerData("DefaultCluster", "broker-a", {0: "192.0.2.1:10911", 1: "192.0.2.2:10911"})
    route = TopicRouteData([broker], [QueueData("broker-a", 4, 4, 6)], order_topic_conf="broker-a:4")

    assert b'"brokerAddrs":{0:"192.0.2.1:10911",1:"192.0.2.2:10911"}' in to_json(route)
    assert json.loads(to_json(route, quoted=True))["brokerDatas"][0]["brokerAddrs"]["1"] == "192.0.2.2:10911"
    assert from_json(TopicRouteData, to_json(route)) == route
    assert from_json(TopicRouteData, to_json(route, quoted=True)) == route


def test_a_route_without_5_x_fields_does_not_mention_them():
    keys = json.loads(to_json(TopicRouteData([BrokerData()]), quoted=True))

    assert set(keys) == {"brokerDatas", "queueDatas", "filterServerTable"}
    assert set(keys["brokerDatas"][0]) == {"brokerAddrs", "brokerName", "cluster"}


@pytest.mark.parametrize("name", ["topicSysFlag", "topicSynFlag"])
def test_the_flag_of_queue_data_is_read_under_either_name_and_written_under_both(name):
    found = from_json(QueueData, f'{{"brokerName":"b","{name}":3}}'.encode())

    assert found.topic_sys_flag == 3
    assert b'"topicSynFlag":3,"topicSysFlag":3' in to_json(found)


def test_a_static_topic_s_mapping_is_passed_on():
    text = (
        b'{"brokerDatas":[],"filterServerTable":{},"queueDatas":[],"topicQueueMappingByBroker":{"b":{"bname":"b","currIdMap":'
        b'{0:0,3:1},"dirty":false,"epoch":1,"scope":"__global__","topic":"t","totalQueues":8}}}'
    )

    mapping = from_json(TopicRouteData, text).topic_queue_mapping_by_broker

    assert mapping is not None
    assert mapping["b"]["currIdMap"] == {"0": 0, "3": 1}


def test_cluster_info_is_written_as_java_writes_it():
    info = ClusterInfo(
        {"broker-a": BrokerData("DefaultCluster", "broker-a", {0: "192.0.2.1:10911"})}, {"DefaultCluster": ["broker-a"]}
    )

    assert to_json(info) == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"192.0.2.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster"}},'
        b'"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
    )


def test_lists_and_tables_of_text_are_written_as_java_writes_them():
    assert to_json(TopicList(["t"])) == b'{"topicList":["t"]}'
    assert to_json(KVTable({"k": "v"})) == b'{"table":{"k":"v"}}'


# ---------------------------------------------------------------- configuration


def test_the_topic_file_of_a_broker_is_read_and_written():
    text = (
        b'{"dataVersion":{"counter":3,"timestamp":1700000000000},"topicConfigTable":{"TopicTest":{"order":false,"perm":6,'
        b'"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"TopicTest","topicSysFlag":0,"writeQueueNums":4}}}'
    )

    found = from_json(TopicConfigTable, text)

    assert found.topic_config_table == {"TopicTest": TopicConfig("TopicTest", 4, 4, 6)}
    assert to_json(found) == text


def test_data_versions_are_equal_when_all_their_fields_are():
    version = DataVersion(1, 5)

    assert version.next(9) == DataVersion(2, 9)
    assert version != DataVersion(1, 5, 1)
    assert from_json(DataVersion, b'{"counter":1,"timestamp":5,"stateVersion":1}') == DataVersion(1, 5, 1)


# ---------------------------------------------------------------- registration


def test_the_worked_deflated_registration_is_written_and_read():
    data = encode_register_body(REGISTERED, compressed=True)

    assert zlib.decompress(data) == DEFLATED
    assert data == zlib.compress(DEFLATED, 9)
    assert decode_register_body(zlib.compress(DEFLATED), compressed=True) == REGISTERED


def test_the_worked_plain_registration_is_read():
    text = b"""{"filterServerList":[],
 "topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"timestamp":1700000000000},
   "topicConfigTable":{"t":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",
                            "topicName":"t","topicSysFlag":0,"writeQueueNums":4}}}}"""

    assert decode_register_body(text) == REGISTERED


def test_an_empty_registration_registers_nothing():
    assert decode_register_body(b"") == RegisterBrokerBody()


def test_a_deflated_registration_of_5_x_with_attributes_and_a_tail_is_read():
    topic = b"t 16 16 6 SINGLE_TAG {}"
    raw = DEFLATED[:43] + bytes.fromhex("00000001") + len(topic).to_bytes(4, "big") + topic + b"\0\0\0\2[]" + bytes(4)

    wrapper = decode_register_body(zlib.compress(raw), compressed=True).topic_config_serialize_wrapper

    assert wrapper.topic_config_table == {"t": TopicConfig("t", 16, 16, 6, attributes={})}


NAMES = st.text("abcXYZ_-%|09", min_size=1, max_size=30)
TOPICS = st.builds(
    TopicConfig,
    NAMES,
    st.integers(0, 99),
    st.integers(0, 99),
    st.integers(0, 15),
    st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    attributes=st.none() | st.dictionaries(NAMES, st.text("a b{}", max_size=5), max_size=2),
)


@given(st.lists(TOPICS, max_size=5), st.lists(NAMES, max_size=2), st.booleans())
def test_a_registration_is_read_as_it_was_written(topics, servers, compressed):
    table = TopicConfigTable(DataVersion(7, 8), {topic.topic_name: topic for topic in topics})
    body = RegisterBrokerBody(table, servers)

    assert decode_register_body(encode_register_body(body, compressed=compressed), compressed=compressed) == body


@given(st.data())
def test_a_damaged_deflated_registration_is_read_or_refused(data):
    raw = bytearray(DEFLATED)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])

    for damaged in (bytes(raw), cut):
        try:
            decode_register_body(zlib.compress(damaged), compressed=True)
        except BadBody:
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        zlib.compress(b""),
        zlib.compress(DEFLATED)[:-5],
        zlib.compress(DEFLATED[:43] + b"\xff\xff\xff\xff"),
        zlib.compress(DEFLATED[:43] + (OBJECTS_MAX + 1).to_bytes(4, "big")),
        zlib.compress(DEFLATED[:43] + b"\0\0\0\1\0\0\0\5t 4 4"),
        zlib.compress(DEFLATED[:43] + b"\0\0\0\1\0\0\0\x0dt four 4 6 ST"),
        zlib.compress(DEFLATED[:43] + b"\0\0\0\1\0\0\0\1\xff"),
    ],
    ids=range(8),
)
def test_a_bad_deflated_registration_is_refused(data):
    with pytest.raises(BadBody):
        decode_register_body(data, compressed=True)


def test_more_topics_than_a_broker_may_register_are_refused_before_they_are_read():
    count = OBJECTS_MAX + 1
    topic = b"\0\0\0\x09t 4 4 6 S"

    with pytest.raises(BadBody, match=f"a registration of {count} topics"):
        decode_register_body(zlib.compress(DEFLATED[:43] + count.to_bytes(4, "big") + topic * count + bytes(4)), compressed=True)


def test_a_zip_bomb_is_refused_without_growing():
    bomb = zlib.compress(bytes(100 * 1024 * 1024), 1)

    tracemalloc.start()
    with pytest.raises(BadBody):
        decode_register_body(bomb, compressed=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 40 * 1024 * 1024
