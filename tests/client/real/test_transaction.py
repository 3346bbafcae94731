"""Transactional producers against a real broker of ours on real sockets: blocks, listeners, checks, and who answers them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest

from halfmoon import (
    Admin,
    AsyncTransactionProducer,
    LocalTransactionState,
    Message,
    Producer,
    TransactionProducer,
)
from halfmoon.testing.local import LocalCluster
from tests.visible import settled
from tests.waiting import until

pytestmark = pytest.mark.slow

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
_numbers = count()


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, Any]:
    return {"transactionTimeOut": 200, "transactionCheckInterval": 200}


@pytest.fixture
def names(cluster: LocalCluster) -> dict[str, Any]:
    return {"group": f"P_{next(_numbers)}", "nameserver": cluster.nameserver}


def bodies(cluster: LocalCluster, topic: str, message_count: int, *, undecided: int = 0) -> list[bytes]:
    """Return the bodies of a topic, sorted, once so many are there and so many half messages."""
    return sorted(message.body for message in settled(cluster.nameserver, topic, message_count, undecided=undecided))


@pytest.mark.mission("000-02", "000-70", "003-04", "004-18")
def test_what_is_committed_is_delivered_and_what_is_rolled_back_is_not(cluster, names, topic):
    with (
        TransactionProducer(**names, check=lambda message: ROLLBACK) as producer,
        Admin(nameserver=cluster.nameserver) as admin,
    ):
        with producer.half(Message(topic, b"block")) as half:
            until(lambda: admin.transaction(half.message_id).checks_sent >= 2)
            assert bodies(cluster, topic, 0, undecided=1) == [], "half while the block runs"
        with pytest.raises(ZeroDivisionError), producer.half(Message(topic, b"error")):
            raise ZeroDivisionError
        producer.send_in_transaction(Message(topic, b"call"), executor=lambda message, arg: COMMIT)
        producer.send_in_transaction(Message(topic, b"no"), executor=lambda message, arg: ROLLBACK)
        producer.send(Message(topic, b"plain"))

        assert bodies(cluster, topic, 3) == [b"block", b"call", b"plain"]


@pytest.mark.mission("000-69", "000-71", "003-24", "004-33", "004-34")
def test_what_is_left_is_asked_in_a_thread_until_it_is_known(cluster, names, topic):
    asked: list[tuple[str, bool]] = []
    answers = [None, UNKNOWN, ValueError("no database"), COMMIT]

    def check(message):
        asked.append((message.transaction_id, threading.current_thread() is threading.main_thread()))
        said = answers.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    with TransactionProducer(**names) as producer:
        with producer.half(Message(topic, b"left"), check=check) as half:
            half.leave()

        assert bodies(cluster, topic, 1) == [b"left"]

    assert asked == [(half.transaction_id, False)] * 4


@pytest.mark.mission("003-11", "000-69")
def test_a_member_that_never_sent_anything_answers_for_one_that_left(cluster, names, topic):
    with TransactionProducer(**names, check=lambda message: COMMIT):
        with TransactionProducer(**names, check=lambda message: UNKNOWN) as gone, gone.half(Message(topic, b"left")) as half:
            half.leave()

        assert bodies(cluster, topic, 1) == [b"left"]


async def test_asyncio_checks_are_awaited_and_a_cancelled_block_is_asked_for(cluster, names, topic):
    asked = asyncio.Event()

    async def check(message):
        asked.set()
        return COMMIT

    async with AsyncTransactionProducer(**names, check=check) as producer:
        async with producer.half(Message(topic, b"committed")):
            await asyncio.sleep(0)

        inside = asyncio.Event()

        async def work():
            async with producer.half(Message(topic, b"cancelled")):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        await asyncio.wait([task])
        await asyncio.wait_for(asked.wait(), 60)

        assert await asyncio.to_thread(bodies, cluster, topic, 2) == [b"cancelled", b"committed"]


async def test_many_transactions_at_once_are_each_decided_once(cluster, names, topic):
    async def one(producer, number):
        try:
            async with producer.half(Message(topic, b"%d" % number)):
                await asyncio.sleep(0)
                if number % 3 == 0:
                    raise LookupError
        except LookupError:
            return

    async with AsyncTransactionProducer(**names, check=lambda message: ROLLBACK) as producer:
        await asyncio.gather(*(one(producer, number) for number in range(90)))
        found = await asyncio.to_thread(bodies, cluster, topic, 60)

    assert found == sorted(b"%d" % number for number in range(90) if number % 3)


async def test_a_plain_local_transaction_does_not_hold_up_the_event_loop(cluster, names, topic):
    begun, go_on = threading.Event(), threading.Event()

    def execute(message, arg):
        begun.set()
        assert go_on.wait(60)
        return COMMIT

    async with AsyncTransactionProducer(**names, check=lambda message: ROLLBACK) as producer:
        task = asyncio.create_task(producer.send_in_transaction(Message(topic, b"slow"), executor=execute))
        await asyncio.to_thread(begun.wait, 20)
        await producer.send(Message(topic, b"beside"))
        go_on.set()

        assert (await task).local_state is COMMIT


@pytest.mark.parametrize("asked", [False, True])
def test_in_a_group_of_thirteen_the_one_member_that_knows_the_topic_decides_everything(cluster, names, topic, asked):
    with ExitStack() as members, Admin(nameserver=cluster.nameserver) as admin:
        for number in range(11):
            members.enter_context(TransactionProducer(**names, instance_name=f"other-{number}")).on_check(
                "stock", lambda message: ROLLBACK
            )
        plain = members.enter_context(Producer(**names, instance_name="plain"))  # of the group, and without transactions
        gone = TransactionProducer(**names, instance_name="gone", check=lambda message: LocalTransactionState.NOT_MINE)
        with gone:
            halves = [gone.prepare(Message(topic, b"%02d" % number)) for number in range(20)]
            for half in halves:
                half.leave()
            plain.send(Message(topic, b"plain"))
            if asked:  # all others, more often than anything is asked that is not answered
                until(lambda: all(admin.transaction(half.message_id).checks_sent > 15 for half in halves))
        members.enter_context(TransactionProducer(**names, check=lambda message: COMMIT, instance_name="knowing"))

        assert bodies(cluster, topic, 21)[:20] == [b"%02d" % number for number in range(20)]
        assert not [one for one in admin.expired_transactions() if one.group == names["group"]]
        answers = [check.answer for half in halves for check in admin.transaction(half.message_id).checks]
        # "NONE": a member asked just before the decision; its answer arrives later, on a busy machine
        assert set(answers) - {"NONE"} == {"NOT_MINE", "COMMIT"}
        assert answers.count("NONE") <= len(halves)
