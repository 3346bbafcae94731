"""Requests to the name server, as they travel."""

from __future__ import annotations

from halfmoon.wire.headers import route
from tests.wire.headers.fields import required, sent


def test_a_broker_registers_with_its_name_address_cluster_and_id():
    assert required(route.RegisterBroker) == "brokerName brokerAddr clusterName brokerId"
    header = route.RegisterBroker(
        broker_name="broker-a", broker_addr="a:1", cluster_name="c", broker_id=0, compressed=True, body_crc32=7,
        heartbeat_timeout_millis=9,
    )  # fmt: skip
    assert sent(header) == {
        "brokerName": "broker-a", "brokerAddr": "a:1", "clusterName": "c", "haServerAddr": "", "brokerId": "0",
        "compressed": "true", "bodyCrc32": "7", "heartbeatTimeoutMillis": "9",
    }  # fmt: skip
    assert required(route.RegisterBrokerReply) == ""


def test_a_route_is_asked_for_by_topic():
    header = route.GetRouteinfoByTopic(topic="orders", accept_standard_json_only=True)
    assert sent(header) == {"topic": "orders", "acceptStandardJsonOnly": "true"}


def test_replies_count_the_topics_whose_permission_changed():
    assert sent(route.WipeWritePermOfBrokerReply(wipe_topic_count=3)) == {"wipeTopicCount": "3"}
    assert sent(route.AddWritePermOfBrokerReply(add_topic_count=3)) == {"addTopicCount": "3"}
