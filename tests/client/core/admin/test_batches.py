"""Batch transactions of all brokers: pages, brokers that know none, and errors."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.batches import batches
from halfmoon.errors import ConnectFailed, RequestTimeout
from halfmoon.wire.bodies import KVTable
from halfmoon.wire.bodies.batches import BatchId, BatchList
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.batch import ListBatches
from halfmoon.wire.json import to_json
from tests.client.core.admin.test_admin import admin
from tests.client.scripted import REFUSED, SILENT, Reply, Scripted


def ids(*names: str, following: str | None = None) -> Reply:
    return Reply(body=to_json(BatchList(ids=[BatchId(name) for name in names], next=following)))


def test_the_pages_of_each_broker_are_one_list():
    script = Scripted()
    core = admin(script)
    pages = {("broker-a:1", None): ids("a", "b", following="b"), ("broker-a:1", "b"): ids("c"), ("broker-b:1", None): ids("d")}
    script.on(ListBatches, lambda seen: pages[seen.address, seen.request.after])

    lists = script.run(batches(core, "any"))

    assert [(broker.broker, broker.address, len(broker.ids)) for broker in lists] == [
        ("broker-a", "broker-a:1", 3),
        ("broker-b", "broker-b:1", 1),
    ]
    assert {seen.request.transactional_id for seen in script.asked(ListBatches)} == {"any"}


@pytest.mark.parametrize("answer", [Reply(3, remark="not supported"), SILENT], ids=["refuses", "says nothing"])
def test_a_broker_without_batch_transactions_is_listed_as_such(answer):
    script = Scripted()
    core = admin(script)
    script.on(GetBrokerRuntimeInfo, Reply(body=to_json(KVTable())))
    script.on(ListBatches, answer)

    assert [(broker.broker, broker.supported, broker.ids) for broker in script.run(batches(core))] == [
        ("broker-a", False, []),
        ("broker-b", False, []),
    ]


def test_a_broker_that_cannot_be_reached_is_an_error_and_not_a_shorter_list():
    script = Scripted()
    core = admin(script)
    script.on(ListBatches, lambda seen: REFUSED if seen.address == "broker-b:1" else ids("a"))

    with pytest.raises(ConnectFailed):
        script.run(batches(core))


def test_a_broker_of_ours_that_does_not_answer_in_time_is_an_error_and_not_one_without_batches():
    script = Scripted()
    core = admin(script)
    script.on(ListBatches, SILENT)
    script.on(GetBrokerRuntimeInfo, Reply(body=to_json(KVTable({"transactionsPending": "0"}))))

    with pytest.raises(RequestTimeout):
        script.run(batches(core))
