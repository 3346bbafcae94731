"""Tests of what requests need: the resources that one names, and the sentence for the reference page."""

from __future__ import annotations

import pytest

import halfmoon.wire.headers
from halfmoon.errors import PeerError
from halfmoon.wire.needs import ADMIN, PUB, SUB, account, nothing, publish, reply, subscribe
from halfmoon.wire.table import REQUESTS

NAMES = {"topic": "b", "consumer_group": "consumerGroup"}
assert halfmoon.wire.headers


def test_what_is_published_to_is_named_by_the_wires_field():
    assert publish("topic").of({"b": "orders"}, b"", NAMES) == [("orders", PUB)]


def test_a_message_for_a_retry_topic_needs_what_consuming_in_the_group_does():
    assert publish("topic").of({"b": "%RETRY%g"}, b"", NAMES) == [("%RETRY%g", SUB)]


def test_a_reply_needs_nothing_for_a_reply_topic_and_what_a_send_does_for_any_other():
    assert reply("topic").of({"b": "DefaultCluster_REPLY_TOPIC"}, b"", NAMES) == []
    assert reply("topic").of({"b": "orders"}, b"", NAMES) == [("orders", PUB)]


def test_a_group_is_written_as_its_retry_topic():
    needs = subscribe(topic="topic", group="consumer_group")
    assert needs.of({"b": "orders", "consumerGroup": "g"}, b"", NAMES) == [("orders", SUB), ("%RETRY%g", SUB)]


def test_a_field_that_is_not_there_names_nothing():
    assert subscribe(topic="topic", group="consumer_group").of({"b": "orders"}, b"", NAMES) == [("orders", SUB)]


def test_a_heartbeat_names_each_group_and_each_topic_that_it_subscribes_to():
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t"},{"topic":"u"}]}]}'
    assert REQUESTS[34].needs.of({}, body, {}) == [("%RETRY%g", SUB), ("t", SUB), ("u", SUB)]


def test_a_heartbeat_that_is_none_is_refused():
    with pytest.raises(PeerError):
        REQUESTS[34].needs.of({}, b"{", {})


@pytest.mark.parametrize(("needs", "text"), [
    (ADMIN, "admin"),
    (publish("topic", why="because"), "PUB of the topic `b`: because"),
    (subscribe(topic="topic", group="consumer_group"), "SUB of the topic `b`, SUB of the group `consumerGroup`"),
    (subscribe(in_body=lambda body: []), "SUB of each topic and group in the body"),
    (reply("topic"), "PUB of the topic `b`, but for reply topics: as in 4.9, who is asked may reply"),
    (account("why"), "an account: why"),
    (nothing("why"), "nothing: why"),
])  # fmt: skip
def test_the_reference_page_says_it_in_words(needs, text):
    assert needs.text(NAMES) == text
