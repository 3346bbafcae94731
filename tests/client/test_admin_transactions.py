"""What `AsyncAdmin` and its blocking twin ask and decide about transactions, at a real broker."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from halfmoon import Admin, AsyncAdmin, AsyncTransactionProducer, BrokerError, LocalTransactionState, Message
from halfmoon.testing.local import LocalCluster

CALLS = ("pending_transactions", "transaction", "check_transaction", "decide_transaction", "transaction_stats", "given_up")
UNKNOWN = LocalTransactionState.UNKNOWN


@pytest.mark.parametrize("name", CALLS)
def test_the_blocking_twin_takes_the_same_and_says_the_same(name):
    blocking, waiting = getattr(Admin, name), getattr(AsyncAdmin, name)

    assert inspect.signature(blocking) == inspect.signature(waiting)
    assert inspect.iscoroutinefunction(waiting)
    assert not inspect.iscoroutinefunction(blocking)
    assert inspect.getdoc(blocking) == inspect.getdoc(waiting)


async def test_a_transaction_is_watched_asked_about_and_decided(tmp_path):
    with await asyncio.to_thread(started, tmp_path / "store") as cluster:
        producer = AsyncTransactionProducer(group="P", nameserver=cluster.nameserver, check=lambda message: UNKNOWN)
        async with producer, AsyncAdmin(nameserver=cluster.nameserver) as admin:
            await admin.create_topic("orders", queue_count=1)
            async with producer.half(Message("orders", b"x", keys=["k"])) as half:
                half.leave()
            [pending] = await admin.pending_transactions(group="P")
            asked = await admin.check_transaction(half.transaction_id)
            for _ in range(200):
                if (await admin.transaction("k")).last_answer == "UNKNOWN":
                    break
                await asyncio.sleep(0.02)
            answered = await admin.transaction("k")
            [before] = await admin.transaction_stats()
            done = await admin.decide_transaction("k", commit=True, operator="Ada")
            [after] = await admin.transaction_stats()
            with pytest.raises(BrokerError, match="decided: COMMITTED"):
                await admin.decide_transaction("k", commit=False, operator="Ada")
            given_up = await admin.given_up()
            ends = await admin.topic_stats("orders")

    assert (pending.msg_id, pending.broker, pending.address) == (half.transaction_id, "broker-a", cluster.broker)
    assert (asked.checks_sent, answered.last_answer, done.state) == (1, "UNKNOWN", "COMMITTED")
    assert (before.pending_count, after.pending_count, after.counters["by_hand"]) == (1, 0, 1)
    assert (given_up, [each.max_offset for each in ends.values()]) == ([], [1])


def started(data) -> LocalCluster:
    """Return a running broker that asks nobody by itself."""
    cluster = LocalCluster(data, {"transactionCheckInterval": 600_000})
    cluster.start()
    return cluster
