"""How the user chooses the queue of a message: by a function, or by a key."""

from __future__ import annotations

import pytest

from halfmoon.client.core.produce.selector import java_key_hash, select_by_hash
from halfmoon.errors import (
    UsageError,
)
from halfmoon.model import MessageQueue
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from tests.client.core.produce.test_send import ORDER, TWO
from tests.client.scripted import Scripted, producer, route, routes


def test_a_selector_sees_all_queues_under_the_users_names_and_must_choose_one():
    script = Scripted()
    sender = producer(script, TWO, namespace="NS")
    script.on(GetRouteinfoByTopic, routes(**{"NS%orders": route(TWO)}))
    given = []

    def last(queues, message, key):
        given.append((queues, message, key))
        return queues[-1]

    result = script.run(sender.send(ORDER, selector=last, key=5))

    assert given == [([MessageQueue("orders", name, i) for name in ("broker-a", "broker-b") for i in (0, 1)], ORDER, 5)]
    assert result.queue == MessageQueue("orders", "broker-b", 1)
    with pytest.raises(UsageError, match=r"select message queue return null\."):
        script.run(sender.send(ORDER, selector=lambda queues, message, key: None))


@pytest.mark.mission("004-16")
def test_selecting_by_hash_follows_java():
    queues = [MessageQueue("orders", "b", i) for i in range(8)]

    assert [select_by_hash(queues, ORDER, key).queue_id for key in ("a", 9, -9)] == [97 % 8, 1, 1]
    assert select_by_hash(queues, ORDER, "Aa") == select_by_hash(queues, ORDER, "BB")
    assert java_key_hash(-(2**31)) == -(2**31)
    assert java_key_hash(2**32 + 5) == 4
    with pytest.raises(UsageError):
        java_key_hash(1.5)


@pytest.mark.mission("004-16")
@pytest.mark.parametrize("key", ["order-1", "order-2", "\U0001f319", 7, -7, 2**40])
def test_a_key_alone_chooses_the_queue_by_its_hash_in_every_way_of_sending(key):
    script = Scripted()
    sender = producer(script)
    chosen = select_by_hash(script.run(sender.queues("orders")), ORDER, key)

    sent = [script.run(sender.send(ORDER, key=key)) for _ in range(3)]
    sent.append(script.run(sender.send_async(ORDER, key=key)))
    script.run(sender.send_oneway(ORDER, key=key))

    assert {result.queue for result in sent} == {chosen}
    assert script.told[-1].request.queue_id == chosen.queue_id
