"""The transport over the client, against a real broker of ours on real sockets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from halfmoon import Admin, LocalTransactionState, Message
from halfmoon.effects import Op, sleep
from halfmoon.errors import BrokerError, HalfmoonError, NotRunning, UsageError
from halfmoon.events.publishing import client_transport
from halfmoon.events.publishing.client_transport import ClientTransport
from halfmoon.events.publishing.transport import Half
from halfmoon.model import SendResult, StoredMessage
from halfmoon.testing.local import LocalCluster
from tests.events.forking import in_child
from tests.events.outcomes.network import SEND, SEND_BATCH, Network, once
from tests.visible import settled
from tests.waiting import until

pytestmark = pytest.mark.slow

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
_numbers = count()


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, Any]:
    return {"transactionTimeOut": 200, "transactionCheckInterval": 200}


class Asked:
    """What a broker asks is answered as the test says."""

    def __init__(self, state: LocalTransactionState = COMMIT) -> None:
        self.state = state
        self.asked: list[str] = []

    def __call__(self, message: StoredMessage) -> LocalTransactionState:
        self.asked.append(message.msg_id)
        return self.state


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def transport(cluster: LocalCluster, asked: Asked) -> Iterator[ClientTransport]:
    made = ClientTransport(f"P_{next(_numbers)}", cluster.nameserver)
    made.start(asked)
    yield made
    made.close(1_000)


def send(transport: ClientTransport, message: Message, timeout_ms: int = 3_000) -> SendResult:
    """Make one attempt to send a message."""
    (result,) = transport.run(transport.send([message], timeout_ms))
    assert isinstance(result, SendResult)
    return result


def stored(transport: ClientTransport, message: Message, timeout_ms: int = 3_000, check_after_s: int | None = None) -> Half:
    """Make one attempt to store a half message."""
    (half,) = transport.run(transport.prepare([message], timeout_ms, check_after_s))
    assert not isinstance(half, Exception)
    return half


def prepare(transport: ClientTransport, topic: str, body: bytes, **values: Any) -> Half:
    return stored(transport, Message(topic, body, tag="EC_PAID", msg_id=transport.new_id()), **values)


def received(cluster: LocalCluster, topic: str, wanted: int) -> list[StoredMessage]:
    """Return all messages of a topic, once so many are there and nothing is undecided any more."""
    return settled(cluster.nameserver, topic, wanted)


def bodies(cluster: LocalCluster, topic: str, wanted: int) -> list[bytes]:
    return sorted(one.body for one in received(cluster, topic, wanted))


def until_checked(cluster: LocalCluster, prepared: Half, checks: int) -> None:
    """Wait until the broker has asked so often about a half message."""
    with Admin(nameserver=cluster.nameserver) as admin:
        until(lambda: admin.transaction(prepared.message_id).checks_sent >= checks)


@pytest.mark.mission("002-41", "002-43")
def test_a_prepared_message_is_seen_once_it_is_committed_and_not_before(
    cluster: LocalCluster, transport: ClientTransport, topic: str
) -> None:
    prepared = prepare(transport, topic, b"paid", check_after_s=0)
    until_checked(cluster, prepared, 2)
    assert settled(cluster.nameserver, topic, 0, undecided=1) == []

    transport.decide(prepared, commit=True)

    (message,) = received(cluster, topic, 1)
    assert (message.body, message.msg_id) == (b"paid", prepared.message_id)


def test_while_nothing_is_decided_or_left_the_answer_is_not_asked_and_afterwards_it_is(
    cluster: LocalCluster, transport: ClientTransport, topic: str, asked: Asked
) -> None:
    prepared = prepare(transport, topic, b"left", check_after_s=0)
    until_checked(cluster, prepared, 3)
    assert asked.asked == []

    transport.leave(prepared)

    assert bodies(cluster, topic, 1) == [b"left"]
    assert set(asked.asked) == {prepared.message_id}


def test_a_second_decision_neither_raises_nor_changes_anything(
    cluster: LocalCluster, transport: ClientTransport, topic: str
) -> None:
    prepared = prepare(transport, topic, b"once")
    transport.decide(prepared, commit=True)
    transport.decide(prepared, commit=False)
    transport.leave(prepared)

    assert bodies(cluster, topic, 1) == [b"once"]


def test_any_event_loop_may_send_and_prepare(cluster: LocalCluster, transport: ClientTransport, topic: str) -> None:
    async def both() -> Half | Exception:
        await transport.run_async(transport.send([Message(topic, b"sent")], 3_000))
        return (await transport.run_async(transport.prepare([Message(topic, b"prepared")], 3_000)))[0]

    transport.decide(asyncio.run(both()), commit=True)

    assert bodies(cluster, topic, 2) == [b"prepared", b"sent"]


def test_who_posts_is_told_how_it_went_and_what_it_raises_is_only_logged(
    cluster: LocalCluster, transport: ClientTransport, topic: str
) -> None:
    told: list[tuple[SendResult | None, BaseException | None]] = []
    both = threading.Semaphore(0)

    def hear(result: SendResult | None, error: BaseException | None) -> None:
        told.append((result, error))
        both.release()
        raise RuntimeError("not ours")

    transport.post(Message(topic, b"posted"), hear, timeout_ms=3_000)
    assert both.acquire(timeout=60)
    transport.post(Message("bad topic", b"posted"), hear, timeout_ms=3_000)
    assert both.acquire(timeout=60)

    (result, nothing), (none, error) = told
    assert result is not None
    assert nothing is None
    assert none is None
    assert isinstance(error, HalfmoonError)
    assert bodies(cluster, topic, 1) == [b"posted"]


def test_what_is_posted_leaves_before_it_is_closed(cluster: LocalCluster, asked: Asked, topic: str) -> None:
    transport = ClientTransport(f"P_{next(_numbers)}", cluster.nameserver)
    transport.start(asked)
    for number in range(50):
        transport.post(Message(topic, b"%d" % number), lambda result, error: None, timeout_ms=3_000)

    transport.close(3_000)
    transport.close(3_000)

    assert len(bodies(cluster, topic, 50)) == 50


def test_decisions_that_were_given_leave_before_it_is_closed(cluster: LocalCluster, topic: str) -> None:
    asked = Asked(UNKNOWN)
    transport = ClientTransport(f"P_{next(_numbers)}", cluster.nameserver)
    transport.start(asked)
    prepared = [prepare(transport, topic, b"%d" % number) for number in range(20)]
    for one in prepared:
        transport.decide(one, commit=True)
    transport.close(1_000)

    assert len(bodies(cluster, topic, 20)) == 20
    assert asked.asked == []


def test_before_the_start_and_after_the_end_it_refuses_and_says_so(cluster: LocalCluster, asked: Asked) -> None:
    transport = ClientTransport(f"P_{next(_numbers)}", cluster.nameserver)
    with pytest.raises(NotRunning, match="start"):
        send(transport, Message("t", b"x"), 1_000)
    transport.start(asked)
    transport.start(asked)
    transport.close(0)
    with pytest.raises(NotRunning, match="closed"):
        send(transport, Message("t", b"x"), 1_000)
    with pytest.raises(NotRunning, match="closed"):
        transport.start(asked)


@pytest.mark.parametrize(("wrong", "attempt"), [("", 1), ("a b", 1), ("x" * 65, 1), ("a\x01b", 1), (7, 1), (None, 2)])
def test_an_id_that_cannot_be_one_and_a_repeat_without_one_are_refused(
    transport: ClientTransport, topic: str, wrong: Any, attempt: int
) -> None:
    with pytest.raises(UsageError, match="msg_id"):
        send(transport, Message(topic, b"x", msg_id=wrong, attempt=attempt))


def test_a_refusal_of_the_broker_is_raised(transport: ClientTransport) -> None:
    with pytest.raises((BrokerError, HalfmoonError)):
        stored(transport, Message("RMQ_SYS_TRANS_HALF_TOPIC", b"x"))


# ---------------------------------------------------------------- several together, and answers that are lost


@pytest.fixture
def network(cluster: LocalCluster) -> Iterator[Network]:
    with Network(cluster.nameserver, cluster.broker) as found:
        yield found


@pytest.fixture
def shaky(network: Network, asked: Asked) -> Iterator[ClientTransport]:
    """A transport behind a network that loses what a test says."""
    made = ClientTransport(f"P_{next(_numbers)}", network.nameserver)
    made.start(asked)
    yield made
    made.close(1_000)


def messages(transport: ClientTransport, topic: str, count: int, **values: Any) -> list[Message]:
    return [Message(topic, b"%d" % number, tag="EC_PAID", msg_id=transport.new_id(), **values) for number in range(count)]


def test_half_messages_that_are_prepared_together_are_decided_one_by_one(
    cluster: LocalCluster, transport: ClientTransport, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_transport, "TOGETHER_MAX", 4)
    made = messages(transport, topic, 9)
    made[5] = Message("RMQ_SYS_TRANS_HALF_TOPIC", b"refused", msg_id=transport.new_id())

    prepared = transport.run(transport.prepare(made, 3_000))

    assert [not isinstance(one, Exception) for one in prepared] == [number != 5 for number in range(9)]
    assert isinstance(prepared[5], HalfmoonError)
    for number, one in enumerate(prepared):
        if not isinstance(one, Exception):
            assert one.message_id == made[number].msg_id
            transport.decide(one, commit=number % 2 == 0)
    assert bodies(cluster, topic, 5) == [b"0", b"2", b"4", b"6", b"8"]


def test_all_that_is_prepared_together_shares_one_time(
    transport: ClientTransport, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_transport, "TOGETHER_MAX", 1)
    given: list[int] = []

    class Never:
        """A half message that is not stored."""

        def __init__(self, message: Message, *, timeout_ms: int, **limits: Any) -> None:
            given.append(timeout_ms)

        def store_safe(self) -> Op[None]:
            yield from sleep(50)
            raise HalfmoonError("no answer")

    made = messages(transport, topic, 4)
    monkeypatch.setattr(transport._open().transactions, "half", Never)
    transport.run(transport.prepare(made, 100))
    assert given[0] > 95
    assert given[1:] == sorted(given[1:], reverse=True)
    assert given[3] == 1


@pytest.mark.parametrize("keys", [(), ("id", "order-42")], ids=["in one batch", "by their key"])
def test_messages_that_are_sent_together_have_each_their_own_result(
    cluster: LocalCluster, transport: ClientTransport, topic: str, keys: tuple[str, ...]
) -> None:
    made = messages(transport, topic, 20, keys=keys)

    results = transport.run(transport.send(made, 3_000))

    found = {one.msg_id: one for one in received(cluster, topic, 20)}
    assert len(found) == 20
    for message, result in zip(made, results, strict=True):
        assert isinstance(result, SendResult)
        stored = found[result.msg_id]
        assert (stored.body, stored.queue_offset, stored.offset_msg_id) == (message.body, result.queue_offset, result.offset_msg_id)


def test_messages_whose_one_answer_was_lost_are_sent_again_and_seen_once(
    cluster: LocalCluster, network: Network, shaky: ClientTransport, topic: str
) -> None:
    send(shaky, Message(topic, b"before"))
    made = messages(shaky, topic, 3)
    network.lose("answer", SEND_BATCH, once())

    with pytest.raises(HalfmoonError):
        shaky.run(shaky.send(made, 500))
    again = shaky.run(shaky.send([msgspec.structs.replace(one, attempt=2) for one in made], 3_000))

    assert (network.lost["answer"], all(isinstance(one, SendResult) for one in again)) == (1, True)
    assert bodies(cluster, topic, 4) == [b"0", b"1", b"2", b"before"]


def test_a_half_message_whose_answer_was_lost_is_sent_again_and_seen_once(
    cluster: LocalCluster, network: Network, shaky: ClientTransport, topic: str, asked: Asked
) -> None:
    shaky.decide(prepare(shaky, topic, b"before"), commit=False)  # the route is known
    message = Message(topic, b"paid", msg_id=shaky.new_id())
    network.lose("answer", SEND, once())

    with pytest.raises(HalfmoonError):
        stored(shaky, message, 500, check_after_s=60)
    shaky.decide(stored(shaky, msgspec.structs.replace(message, attempt=2), check_after_s=60), commit=True)

    assert network.lost["answer"] == 1
    assert [one.msg_id for one in received(cluster, topic, 1)] == [message.msg_id]
    assert message.msg_id not in asked.asked


def test_many_threads_that_begin_at_once_on_a_new_topic_wait_for_its_route_together(cluster: LocalCluster, topic: str) -> None:
    together, took = threading.Barrier(16), []
    transport = ClientTransport(f"P_{next(_numbers)}", cluster.nameserver, request_timeout_ms=60_000)
    transport.start(Asked())

    def work(number: int) -> None:
        message = Message(topic, b"%d" % number, msg_id=transport.new_id())
        together.wait()
        begin = time.monotonic()
        prepared = stored(transport, message, 60_000)
        took.append(time.monotonic() - begin)
        transport.decide(prepared, commit=True)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert len(took) == 16
    assert max(took) < 30  # who missed the answer would wait a minute for it
    assert len(bodies(cluster, topic, 16)) == 16
    transport.close(1_000)


def test_a_child_of_a_fork_sends_over_a_producer_of_its_own_whatever_was_locked(
    cluster: LocalCluster, transport: ClientTransport, topic: str
) -> None:
    send(transport, Message(topic, b"parent"), 3_000)
    with transport._lock:
        assert in_child(lambda: send(transport, Message(topic, b"child"), 10_000))
    assert bodies(cluster, topic, 2) == [b"child", b"parent"]


def test_a_broker_that_was_away_for_long_asks_as_soon_as_a_message_has_reached_it(tmp_path: Path, asked: Asked) -> None:
    with LocalCluster(tmp_path / "broker", {"transactionTimeOut": 200, "transactionCheckInterval": 200}) as away:
        away_transport = ClientTransport("P_away", away.nameserver, heartbeat_ms=600_000)
        away_transport.start(asked)
        away_transport.leave(prepare(away_transport, "TP_AWAY", b"before"))
        until(lambda: len(asked.asked) >= 1)
        away.kill()
        for _ in range(3):  # longer than one reconnection takes, its heartbeat included
            with pytest.raises(HalfmoonError):
                prepare(away_transport, "TP_AWAY", b"lost")
            time.sleep(0.5)
        away.start()

        found: list[Half] = []

        def reached() -> bool:
            try:
                found.append(prepare(away_transport, "TP_AWAY", b"after"))
            except HalfmoonError:
                return False
            return True

        until(reached)
        away_transport.leave(found[0])
        until(lambda: found[0].message_id in asked.asked)
        away_transport.close(1_000)
