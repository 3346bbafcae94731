"""Figures of topics as a broker reports them: right ones, for as many topics as one request may cost."""

from __future__ import annotations

from halfmoon.broker.admin.figures import Figures
from halfmoon.wire.bodies import TopicFigures, TopicFiguresTable, TopicList, from_json, to_json
from halfmoon.wire.headers.offset import UpdateConsumerOffset
from halfmoon.wire.headers.topic import GetTopicFigures
from tests.broker.admin.test_admin import create
from tests.store.driving import use_offsets_up


def figures(talk, *names: str) -> TopicFiguresTable:
    return from_json(TopicFiguresTable, talk.ask(GetTopicFigures(), to_json(TopicList(list(names)))).body)


def test_messages_size_and_groups_of_a_topic_are_those_that_it_has(talk):
    create(talk)
    before = talk.broker.store.end_offset
    for number in range(3):
        talk.send("orders", b"x" * 100 * number, queue_id=number % 2)
    size = talk.broker.store.end_offset - before
    talk.consume("orders", group="C_online")
    talk.ask(UpdateConsumerOffset(consumer_group="C_once", topic="orders", queue_id=0, commit_offset=1))

    [row] = figures(talk, "orders").topics

    assert row == TopicFigures("orders", 3, row.in_per_second, size, ["C_once", "C_online"])


def test_the_rate_is_that_of_the_last_minute(talk):
    create(talk)
    for _ in range(12):
        for _ in range(5):
            talk.send("orders", b"x")
        talk.wait(10_000)

    [row] = figures(talk, "orders").topics

    assert 0.4 < row.in_per_second < 0.6  # 5 messages in 10 s


def test_a_topic_that_this_broker_does_not_have_is_left_out_and_answered(talk):
    create(talk)

    table = figures(talk, "gone", "orders")

    assert [row.topic for row in table.topics] == ["orders"]
    assert table.answered == 2


def test_a_request_looks_at_a_bounded_number_of_queues(talk, monkeypatch):
    monkeypatch.setattr(Figures, "queues_max", 3)
    for name in ("a", "b", "c"):
        create(talk, name)
        for queue_id in range(2):
            talk.send(name, queue_id=queue_id)

    first = figures(talk, "a", "b", "c")
    rest = figures(talk, "b", "c")

    assert ([row.topic for row in first.topics], first.answered) == (["a"], 1)
    assert rest.answered == 1


def test_offsets_that_a_power_loss_used_up_are_no_messages_of_a_topic(talk):
    create(talk)
    talk.send("orders")
    use_offsets_up(talk.broker.store, "orders", 0, 3000)
    talk.send("orders")

    assert figures(talk, "orders").topics[0].messages == 2
