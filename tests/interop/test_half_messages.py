"""Half messages read for an audit from Apache's brokers, which let anybody pull them, by time as well."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from halfmoon import LocalTransactionState, Message, TransactionProducer
from halfmoon.client.admin import Admin
from halfmoon.client.core.ranges import QueueEnds
from halfmoon.client.ranges import Ranges
from halfmoon.errors import NoRoute
from halfmoon.wire.record import decode_records
from tests.interop.apache import Cluster

TOPIC, HALF = "HalfMessages", "RMQ_SYS_TRANS_HALF_TOPIC"


def until_there(client: Ranges, count: int) -> QueueEnds:
    """Return the ends of the half topic once it has so many messages: 4.9 tells its route from its first round of checks on, and
    puts what it answered into queues a little later.
    """
    end = time.monotonic() + 90
    while True:
        try:
            found = client.bounds(HALF)
        except NoRoute:
            found = {}
        if sum(high - low for low, high in found.values()) >= count:
            return found
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.interop
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_an_audit_reads_half_messages_by_pulls(apache: Callable[..., Cluster], version: str) -> None:
    cluster = apache(version, settings={"transactionCheckInterval": 1_000})
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(TOPIC, queue_count=1)
    ids = []
    with TransactionProducer(
        group="P", nameserver=cluster.nameserver, check=lambda message: LocalTransactionState.UNKNOWN
    ) as producer:
        for number in range(5):
            with producer.half(Message(TOPIC, b"%d" % number)) as half:
                ids.append(half.message_id)

    with Ranges(nameserver=cluster.nameserver, half_messages=True) as client:
        ((broker, queue), (low, high)) = until_there(client, len(ids)).popitem()
        found = [message for raw in client.read(broker, HALF, queue, low, high) for message in decode_records(raw)]
        begin = client.offsets_at(HALF, found[3].store_ms)[broker, queue]

    mine = [message for message in found if message.properties["REAL_TOPIC"] == TOPIC]
    assert [message.msg_id for message in mine] == ids
    assert found[begin].store_ms == found[3].store_ms
    assert begin == 0 or found[begin - 1].store_ms < found[3].store_ms
