"""Filters from our consumers' side, through a real broker: tags and SQL92, push and pull, exact and refused."""

from __future__ import annotations

import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.sync import Producer, PullConsumer, PushConsumer
from halfmoon.errors import SubscriptionParseFailed, UsageError
from halfmoon.model import ConsumeFrom, Message, MessageQueue, subscription
from tests.waiting import until

FIRST = ConsumeFrom.FIRST_OFFSET
SQL = "amount > 5 AND region = 'eu'"


@pytest.fixture(scope="module")
def nameserver(halfmoon_broker_session):
    return halfmoon_broker_session.nameserver


@pytest.fixture
def orders(nameserver, request):
    """A topic with twenty orders; those of amount 7, 9 … 19 are in the eu, and so are 1, 3 and 5."""
    topic = "".join(each if each.isalnum() else "_" for each in request.node.name)[:100]
    with Admin(nameserver=nameserver) as admin:
        admin.create_topic(topic, queue_count=1)
    with Producer(group="P_filters", nameserver=nameserver) as producer:
        for amount in range(20):
            tag = ("Aa", "BB")[amount % 2]  # one Java hash
            properties = {"amount": str(amount), "region": ("us", "eu")[amount % 2]}
            producer.send(Message(topic, b"%d" % amount, tag=tag, properties=properties))
    return topic


WANTED = {"sql": (SQL, list(range(7, 20, 2))), "tags": ("BB", list(range(1, 20, 2)))}


def filter_of(kind):
    text, expected = WANTED[kind]
    return ({"sql": text} if kind == "sql" else {"expression": text}), expected


def polled(consumer, count):
    seen = []
    while len(seen) < count and (messages := consumer.poll(5_000)):
        seen += [int(message.body) for message in messages]
    return seen


@pytest.mark.mission("001-05", "001-06", "001-09")
@pytest.mark.parametrize("kind", WANTED)
def test_a_push_consumer_is_given_what_it_subscribed(nameserver, orders, kind):
    wanted, expected = filter_of(kind)
    seen = []
    consumer = PushConsumer(group=f"C_{orders}", nameserver=nameserver, consume_from=FIRST)
    consumer.subscribe(orders, **wanted)
    consumer.on_message(lambda messages: seen.extend(int(message.body) for message in messages))
    with consumer:
        until(lambda: len(seen) >= len(expected))
        with Producer(group="P_filters", nameserver=nameserver) as producer:  # while it waits for more
            producer.send(Message(orders, b"50", tag="Aa", properties={"amount": "50", "region": "us"}))
            producer.send(Message(orders, b"51", tag="BB", properties={"amount": "51", "region": "eu"}))
        until(lambda: len(seen) >= len(expected) + 1)
    assert sorted(seen) == [*expected, 51]


@pytest.mark.mission("001-05", "001-09")
@pytest.mark.parametrize("kind", WANTED)
def test_a_pull_consumer_is_given_what_it_subscribed_or_assigned(nameserver, orders, kind):
    wanted, expected = filter_of(kind)
    queue = MessageQueue(orders, "broker-a", 0)
    with PullConsumer(group=f"C_{orders}", nameserver=nameserver, consume_from=FIRST) as consumer:
        consumer.subscribe(orders, **wanted)
        assert polled(consumer, len(expected)) == expected
        assert consumer.position(queue) == 20

    with PullConsumer(group=f"C2_{orders}", nameserver=nameserver, consume_from=FIRST) as consumer:
        (queue,) = consumer.queues(orders)
        consumer.assign([queue], wanted.get("expression", "*"), sql=wanted.get("sql"))
        consumer.seek_to_begin(queue)
        assert polled(consumer, len(expected)) == expected


@pytest.mark.mission("001-08", "001-09")
def test_of_thousands_with_tags_of_one_hash_only_the_exact_ones_are_delivered(nameserver):
    topic = "Colliding"
    with Admin(nameserver=nameserver) as admin:
        admin.create_topic(topic, queue_count=1)
    with Producer(group="P_filters", nameserver=nameserver) as producer:
        for start in range(0, 10_000, 500):
            numbers = range(start, start + 500)
            producer.send_batch([Message(topic, b"%d" % number, tag=("BB" if number % 10 == 3 else "Aa")) for number in numbers])
    with PullConsumer(group="C_colliding", nameserver=nameserver, consume_from=FIRST, batch_max=32) as consumer:
        consumer.subscribe(topic, "BB || Cc")
        assert polled(consumer, 1_000) == list(range(3, 10_000, 10))
        assert consumer.poll(100) == []


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer])
def test_an_expression_that_does_not_parse_stops_the_start_with_place_and_remedy(nameserver, orders, kind):
    consumer = kind(group=f"C_{orders}", nameserver=nameserver)
    consumer.subscribe(orders, sql="amount > 'x'")
    if kind is PushConsumer:
        consumer.on_message(lambda messages: None)
    with pytest.raises(SubscriptionParseFailed, match="at character"):
        consumer.start()
    consumer.close()


def test_an_expression_given_with_an_assignment_is_checked_at_once(nameserver, orders):
    with PullConsumer(group=f"C_{orders}", nameserver=nameserver) as consumer:
        queues = consumer.queues(orders)
        with pytest.raises(SubscriptionParseFailed):
            consumer.assign(queues, sql="amount >")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"expression": "A", "sql": "a > 5"}, "not both"),
        ({"sql": "  "}, "empty"),
        ({"expression": "org.example.Mine", "expression_type": "CLASS"}, "filters by a class are not supported"),
        ({"expression": "||"}, "split"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(arguments, why):
    with pytest.raises(UsageError, match=why):
        subscription("T", **arguments)
    with pytest.raises(UsageError, match=why):
        PushConsumer(group="C_nobody", nameserver="127.0.0.1:1").subscribe("T", **arguments)
