"""Clients of every kind against a broker with accounts: each is let in with the permissions that it needs, and with no fewer."""

from __future__ import annotations

import asyncio
import threading

import pytest

from halfmoon import (
    Admin,
    AsyncProducer,
    ConsumeFrom,
    HalfmoonError,
    LocalTransactionState,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from halfmoon.client.bulk import BulkProducer, Encoded
from halfmoon.client.ranges import Ranges
from halfmoon.errors import AccessRefused
from halfmoon.hot import encode_batch
from halfmoon.testing.local import LocalCluster
from tests.broker.access.rule_files import write

RULES = """
accounts:
- {accessKey: publisher, secretKey: the secret 1, topicPerms: [orders=PUB], groupPerms: [P_shop=PUB]}
- {accessKey: consumer, secretKey: the secret 2, topicPerms: [orders=SUB], groupPerms: [C_shop=SUB]}
- {accessKey: operator, secretKey: the secret 3, admin: true}
"""
PUBLISHER = {"access_key": "publisher", "secret_key": "the secret 1"}
CONSUMER = {"access_key": "consumer", "secret_key": "the secret 2"}
OPERATOR = {"access_key": "operator", "secret_key": "the secret 3"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    data = tmp_path_factory.mktemp("access")
    write(data, RULES)
    with LocalCluster(data, {"aclEnable": "true", "messageDelayLevel": "1s 1s 1s 1s"}) as running:
        with Admin(nameserver=running.nameserver, **OPERATOR) as admin:
            admin.create_topic("orders", queue_count=2)
            admin.create_topic("secret", queue_count=2)
        yield running


@pytest.fixture
def nameserver(cluster):
    return cluster.nameserver


def bodies(nameserver, **values):
    with PullConsumer(
        group="C_shop", nameserver=nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, **{**CONSUMER, **values}
    ) as consumer:
        consumer.subscribe("orders")
        found = []
        while messages := consumer.poll(timeout_ms=1500):
            found += [message.body for message in messages]
        consumer.commit()
    return found


@pytest.mark.parametrize("serialization", ["JSON", "ROCKETMQ"])
def test_a_producer_and_a_consumer_need_one_permission_each(nameserver, serialization):
    own = {"serialization": serialization}
    text = f"signed in {serialization}".encode()
    with Producer(group="P_shop", nameserver=nameserver, **PUBLISHER, **own) as producer:
        producer.send(Message("orders", text + b" 1"))
        producer.send_batch([Message("orders", text + b" 2"), Message("orders", text + b" 3")])
        producer.send_oneway(Message("orders", text + b" 4"))

    assert {text + b" %d" % number for number in range(1, 5)} <= set(bodies(nameserver, **own))


async def test_asynchronous_sends_are_signed_too(nameserver):
    async with AsyncProducer(group="P_shop", nameserver=nameserver, **PUBLISHER) as producer:
        await asyncio.gather(*[producer.send(Message("orders", b"%d" % number)) for number in range(20)])


def test_a_push_consumer_needs_its_topic_and_its_group_and_gives_back_what_it_cannot_consume(nameserver):
    again, seen = threading.Event(), []
    consumer = PushConsumer(group="C_shop", nameserver=nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, **CONSUMER)
    consumer.subscribe("orders", "again")

    @consumer.on_message
    def listen(messages):
        for message in messages:
            seen.append(message.reconsume_times)
            if message.reconsume_times:
                again.set()
            else:
                raise ValueError("once more")

    with consumer, Producer(group="P_shop", nameserver=nameserver, **PUBLISHER) as producer:
        producer.send(Message("orders", b"x", tag="again"))
        assert again.wait(30)
    assert seen[:2] == [0, 1]


def test_a_transaction_needs_what_a_send_needs_and_a_permission_of_its_group(nameserver):
    with TransactionProducer(group="P_shop", nameserver=nameserver, **PUBLISHER) as producer:
        half = producer.half(Message("orders", b"in a transaction"), check=lambda _message: LocalTransactionState.UNKNOWN)
        with half:
            pass
    assert b"in a transaction" in bodies(nameserver)
    with TransactionProducer(group="P_other", nameserver=nameserver, **PUBLISHER) as producer:
        half = producer.half(Message("orders", b"of no group"), check=lambda _message: LocalTransactionState.UNKNOWN)
        with pytest.raises(HalfmoonError, match="group:P_other"), half:
            pytest.fail("the half message was taken")


def test_bulk_sends_are_signed(nameserver):
    with BulkProducer(group="P_shop", nameserver=nameserver, **PUBLISHER) as producer:
        body = encode_batch([(b"bulk", b"", 0)])
        producer.send_encoded(Encoded("orders", body), producer.queues("orders")).result()
    assert b"bulk" in bodies(nameserver)


def test_ranges_need_the_topic(nameserver):
    with Producer(group="P_shop", nameserver=nameserver, **PUBLISHER) as producer:
        producer.send(Message("orders", b"in a range"))
    with Ranges(nameserver=nameserver, **CONSUMER) as ranges:
        (broker, queue), (begin, end) = max(ranges.bounds("orders").items(), key=lambda bound: bound[1])
        assert b"".join(ranges.read(broker, "orders", queue, begin, end))
        with pytest.raises(AccessRefused, match="topic:secret"):
            list(ranges.read(broker, "secret", 0, 0, 10))


@pytest.mark.parametrize(("account", "words"), [
    ({}, "No accessKey is configured"),
    ({"access_key": "nobody1", "secret_key": "the secret 1"}, "No acl config for nobody1"),
    ({**PUBLISHER, "secret_key": "another secret"}, "Check signature failed for accessKey=publisher"),
    (CONSUMER, "No default permission for topic:orders"),
])  # fmt: skip
def test_who_lacks_something_is_told_what(nameserver, account, words):
    producer = Producer(group="P_shop", nameserver=nameserver, retries_max=0, **account)
    with producer, pytest.raises(HalfmoonError, match=words):
        producer.send(Message("orders", b"x"))


def test_administration_needs_an_administrator(nameserver):
    with Admin(nameserver=nameserver, **PUBLISHER) as admin, pytest.raises(AccessRefused, match="Need admin permission"):
        admin.create_topic("more", queue_count=1)
