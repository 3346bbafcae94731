"""Our transactional producer against Apache's published brokers 4.9.7, 5.3.3 and 4.7.1, and, with the same words, our own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from halfmoon import (
    Admin,
    AsyncTransactionProducer,
    ConsumeFrom,
    LocalTransactionState,
    Message,
    NoRoute,
    PullConsumer,
    StoredMessage,
    TransactionProducer,
    UsageError,
)
from halfmoon.wire.ids import parse_offset_msg_id
from tests.docs.test_examples import _python as run_example
from tests.docs.test_examples import blocks
from tests.interop.apache import Cluster
from tests.interop.ours import Serve
from tests.interop.servers import running
from tests.topics import new_topic
from tests.waiting import until

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
BROKERS = ["4.9.7", "5.3.3", "4.7.1", "ours"]
QUICK = {"transactionTimeOut": 500, "transactionCheckInterval": 1000, "transactionCheckMax": 3}
"""A first check after half a second to one and a half, then every second, and expired after three."""
APACHE = {**QUICK, "transactionOpBatchInterval": 10}
"""5.x writes decisions down only every three seconds, which is later than these checks; 4.x does not know the setting."""
_NUMBERS = count(1)

KILLED = """
import os, signal, sys
from halfmoon import Message, TransactionProducer
nameserver, group, topic = sys.argv[1:]
producer = TransactionProducer(group=group, nameserver=nameserver, check=lambda message: None)
producer.start()
with producer.half(Message(topic, b"killed", keys=["k"])) as half:
    print(half.transaction_id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Shop:
    """A listener that knows what became of which transaction, by the message's body."""

    def __init__(self, executed: dict[bytes, Any] | None = None, checked: dict[bytes, list[Any]] | None = None) -> None:
        self.executed, self.checked = executed or {}, checked or {}
        self.asked: list[StoredMessage] = []

    def execute(self, message: Message, arg: Any) -> Any:
        said = self.executed[bytes(message.body)]
        if isinstance(said, Exception):
            raise said
        return said

    def check(self, message: StoredMessage) -> Any:
        self.asked.append(message)
        said = self.checked.get(message.body, [])
        return said.pop(0) if said else UNKNOWN


@pytest.fixture(scope="module", params=BROKERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve | Cluster]:
    with running(request.param, tmp_path_factory.mktemp("server"), QUICK if request.param == "ours" else APACHE) as found:
        yield found


@pytest.fixture
def names(server: Serve | Cluster) -> dict[str, Any]:
    """Settings of a producer whose group is its own."""
    return {"group": f"tx-{next(_NUMBERS)}", "nameserver": server.nameserver}


@pytest.fixture
def topic(server: Serve | Cluster) -> str:
    return new_topic(server.nameserver, queue_count=2)


def bodies_of(server: Serve | Cluster, topic: str, message_count: int, more_s: float = 1.0, timeout_s: float = 60) -> list[bytes]:
    """Consume until so many messages came, and a while longer for those that must not come; return their bodies, sorted."""
    return sorted(message.body for message in consumed(server, topic, message_count, more_s, timeout_s))


def consumed(
    server: Serve | Cluster, topic: str, message_count: int, more_s: float = 1.0, timeout_s: float = 60
) -> list[StoredMessage]:
    """Consume as `bodies_of` does; return the messages."""
    group = f"consumer-{next(_NUMBERS)}"
    found: list[StoredMessage] = []
    with PullConsumer(group=group, nameserver=server.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET) as consumer:
        consumer.assign(consumer.queues(topic))
        for queue in consumer.assignment():
            consumer.seek_to_begin(queue)
        end = time.monotonic() + timeout_s
        while len(found) < message_count and time.monotonic() < end:
            found += consumer.poll(200)
        end = time.monotonic() + more_s
        while time.monotonic() < end:
            found += consumer.poll(200)
    return found


@pytest.mark.mission("000-01", "000-02", "000-70", "003-01", "003-02", "003-03", "003-04", "003-10", "004-17", "004-18", "004-19")
def test_what_the_listener_commits_is_delivered_and_nothing_else(
    server: Serve | Cluster, names: dict[str, Any], topic: str
) -> None:
    shop = Shop({b"good": COMMIT, b"bad": ROLLBACK, b"legacy": ROLLBACK}, {b"bad": [COMMIT]})
    with TransactionProducer(**names, listener=shop) as producer:
        good = producer.send_in_transaction(Message(topic, b"good", tag="A", keys=["k"], flag=7, properties={"who": "me"}), 1)
        bad = producer.send_in_transaction(Message(topic, b"bad", delay_level=2))
        legacy = producer.send_in_transaction(
            Message(topic, b"legacy"), 5, executor=lambda message, arg: COMMIT if arg == 5 else None
        )
        found = {message.body: message for message in consumed(server, topic, 2, more_s=4)}

    assert (good.local_state, bad.local_state, legacy.local_state) == (COMMIT, ROLLBACK, COMMIT)
    assert sorted(found) == [b"good", b"legacy"]
    seen = found[b"good"]
    assert (seen.tag, seen.keys, seen.flag, seen.properties["who"]) == ("A", ("k",), 7, "me")
    assert seen.msg_id == seen.transaction_id == good.msg_id
    half = parse_offset_msg_id(good.offset_msg_id).physical_offset
    assert seen.prepared_transaction_offset == half, "the visible record names the half one"
    assert shop.asked == [], "decided messages are never asked for"


@pytest.mark.mission("000-69", "000-71", "003-11", "003-24", "004-33", "004-34")
def test_what_is_unknown_is_asked_for_until_it_is_known(server: Serve | Cluster, names: dict[str, Any], topic: str) -> None:
    shop = Shop(
        {b"later": UNKNOWN, b"silent": None, b"broken": ValueError("no database"), b"never": UNKNOWN},
        {b"later": [UNKNOWN, COMMIT], b"silent": [COMMIT], b"broken": [COMMIT], b"never": [ROLLBACK]},
    )
    with TransactionProducer(**names, listener=shop) as producer:
        results = {body: producer.send_in_transaction(Message(topic, body, keys=["k"])) for body in shop.executed}
        found = bodies_of(server, topic, 3)
        until(lambda: sum(message.body == b"never" for message in shop.asked) == 1)

    assert found == [b"broken", b"later", b"silent"]
    assert {result.local_state for result in results.values()} == {UNKNOWN}
    assert isinstance(results[b"broken"].local_error, ValueError)
    asked = [message.body for message in shop.asked]
    assert (asked.count(b"later"), asked.count(b"silent"), asked.count(b"never")) == (2, 1, 1)
    for message in shop.asked:
        assert (message.topic, message.keys) == (topic, ("k",))
        assert message.transaction_id == results[message.body].msg_id


def test_a_block_commits_rolls_back_or_leaves_the_decision_to_the_check(
    server: Serve | Cluster, names: dict[str, Any], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(checked={b"left": [COMMIT], b"interrupted": [ROLLBACK], b"long": [ROLLBACK]})
    with TransactionProducer(**names) as producer:
        producer.on_check("topic_*", shop.check)
        with producer.half(Message(topic, b"commit")):
            pass
        with pytest.raises(ZeroDivisionError), producer.half(Message(topic, b"rollback")):
            raise ZeroDivisionError
        with producer.half(Message(topic, b"early")) as half:
            half.commit()
        with producer.half(Message(topic, b"left")) as half:
            half.leave()
        with pytest.raises(KeyboardInterrupt), producer.half(Message(topic, b"interrupted")):
            raise KeyboardInterrupt
        with producer.half(Message(topic, b"long")) as long, caplog.at_level("INFO", "halfmoon.client"):
            until(lambda: f"state=OPEN topic={topic} transaction_id={long.transaction_id}" in caplog.text)
        found = bodies_of(server, topic, 4, more_s=4)

    assert found == [b"commit", b"early", b"left", b"long"], "while a block runs, a check does not decide"
    asked = [message.body for message in shop.asked]
    if isinstance(server, Cluster):  # a decision may meet a check of theirs on its way: then they ask about what is decided
        asked = [body for body in asked if body not in (b"commit", b"rollback", b"early")]
    assert sorted(asked) == [b"interrupted", b"left"]


async def test_the_asyncio_twin_does_the_same(server: Serve | Cluster, names: dict[str, Any], topic: str) -> None:
    asked: list[bytes] = []

    async def check(message: StoredMessage) -> LocalTransactionState:
        asked.append(message.body)
        return COMMIT

    async with AsyncTransactionProducer(**names, check=check) as producer:
        async with producer.half(Message(topic, b"commit"), check_after_s=60) as half:
            await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError):
            async with producer.half(Message(topic, b"rollback")):
                raise ZeroDivisionError
        with pytest.raises(TimeoutError):
            async with producer.half(Message(topic, b"late")), asyncio.timeout(0.01):
                await asyncio.sleep(1)
        found = await asyncio.to_thread(bodies_of, server, topic, 2)

    assert half.transaction_id == half.message_id
    assert found == [b"commit", b"late"]
    assert asked == [b"late"]


@pytest.mark.mission("000-69")
def test_another_member_answers_for_a_producer_that_was_killed(server: Serve | Cluster, names: dict[str, Any], topic: str) -> None:
    asked = threading.Event()
    seen: list[StoredMessage] = []

    def check(message: StoredMessage) -> LocalTransactionState:
        seen.append(message)
        asked.set()
        return COMMIT

    with TransactionProducer(**names, check=check):
        command = [sys.executable, "-c", KILLED, names["nameserver"], names["group"], topic]
        killed = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert killed.returncode == -9, killed.stderr
        assert asked.wait(60), "the member that never sent anything is asked"
        found = bodies_of(server, topic, 1)

    assert found == [b"killed"]
    assert [message.transaction_id for message in seen] == [killed.stdout.strip()]


def test_an_operator_decides_by_hand(server: Serve | Cluster, names: dict[str, Any], topic: str) -> None:
    with (
        TransactionProducer(**names, listener=Shop({b"c": UNKNOWN, b"r": UNKNOWN})) as producer,
        Admin(nameserver=server.nameserver) as admin,
    ):
        commit = producer.send_in_transaction(Message(topic, b"c"), check_after_s=60)
        rollback = producer.send_in_transaction(Message(topic, b"r"), check_after_s=60)
        admin.end_transaction(commit.offset_msg_id, COMMIT)
        admin.end_transaction(rollback.offset_msg_id, ROLLBACK)
        with pytest.raises(UsageError):
            admin.end_transaction(commit.offset_msg_id, UNKNOWN)
        found = bodies_of(server, topic, 1)

    assert found == [b"c"]


def test_what_expired_is_resumed(server: Serve | Cluster, names: dict[str, Any], topic: str) -> None:
    shop = Shop({b"x": UNKNOWN})
    with TransactionProducer(**names, listener=shop) as producer, Admin(nameserver=server.nameserver) as admin:
        sent = producer.send_in_transaction(Message(topic, b"x", keys=["k"]))
        expired = expired_message(server, sent.msg_id)
        shop.checked[b"x"] = [COMMIT]
        admin.resume_half(expired.offset_msg_id)
        found = bodies_of(server, topic, 1)

    assert found == [b"x"]


def expired_message(server: Serve | Cluster, msg_id: str, timeout_s: float = 60) -> StoredMessage:
    """Wait until a message lies among those expired, and return it."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        try:
            found = consumed(server, "TRANS_CHECK_MAX_TIME_TOPIC", 1, timeout_s=1)
        except NoRoute:  # the topic is made when it is first needed
            time.sleep(0.2)
            continue
        for message in found:
            if message.msg_id == msg_id:
                return message
    raise AssertionError("it never expired")


def test_the_examples_of_the_page_run_and_show_what_it_says(server: Serve | Cluster, tmp_path: Path) -> None:
    examples = [block for block in blocks("docs/transactions.md") if block.language == "python"]

    for example in examples:
        run_example(example, server.nameserver, tmp_path)

    assert len(examples) >= 5
