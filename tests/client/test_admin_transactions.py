"""What `AsyncAdmin` asks and decides about transactions, at a real broker."""

from __future__ import annotations

import asyncio

import pytest

from halfmoon import AsyncAdmin, AsyncTransactionProducer, BrokerError, LocalTransactionState, Message
from halfmoon.testing.local import LocalCluster

UNKNOWN = LocalTransactionState.UNKNOWN


async def test_a_transaction_is_watched_asked_about_and_decided(tmp_path):
    with await asyncio.to_thread(started, tmp_path / "store") as cluster:
        producer = AsyncTransactionProducer(group="P", nameserver=cluster.nameserver, check=lambda message: UNKNOWN)
        async with producer, AsyncAdmin(nameserver=cluster.nameserver) as admin:
            await admin.create_topic("orders", queue_count=1)
            async with producer.half(Message("orders", b"x", keys=["k"])) as half:
                half.leave()
            [pending] = await admin.pending_transactions(group="P")
            asked = await admin.check_transaction(half.transaction_id)
            async with asyncio.timeout(60):
                while (answered := await admin.transaction("k")).last_answer != "UNKNOWN":
                    continue
            [before] = await admin.transaction_stats()
            done = await admin.decide_transaction("k", commit=True, operator="Ada")
            [after] = await admin.transaction_stats()
            with pytest.raises(BrokerError, match="decided: COMMITTED"):
                await admin.decide_transaction("k", commit=False, operator="Ada")
            expired = await admin.expired_transactions()
            ends = await admin.topic_stats("orders")

    assert (pending.msg_id, pending.broker, pending.address) == (half.transaction_id, "broker-a", cluster.broker)
    assert (asked.checks_sent, answered.last_answer, done.state) == (1, "UNKNOWN", "COMMITTED")
    assert (before.pending_count, after.pending_count, after.counters["by_hand"]) == (1, 0, 1)
    assert (expired, [each.max_offset for each in ends.values()]) == ([], [1])


def started(data) -> LocalCluster:
    """Return a running broker that asks nobody by itself."""
    cluster = LocalCluster(data, {"transactionCheckInterval": 600_000})
    cluster.start()
    return cluster
