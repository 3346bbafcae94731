"""Processes that stand still and go on: a client with a long poll and a lock, a slow reader, the broker, the name server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon import Admin, Message, MessageQueue, Producer, PushConsumer
from halfmoon.model import ConsumeFrom
from halfmoon.wire.command import decode, encode, request_command
from halfmoon.wire.frame import Inbox
from halfmoon.wire.headers.pull import PullMessage
from tests.interop.ours import COMMAND, Serve
from tests.interop.process import Server, free_port
from tests.waiting import stand_still, until

pytestmark = pytest.mark.slow

MEMBER = """
import sys, time
from halfmoon import PushConsumer
from halfmoon.model import ConsumeFrom
consumer = PushConsumer(
    group="C", nameserver=sys.argv[1], orderly=True, instance_name="stopped", consume_from=ConsumeFrom.FIRST_OFFSET,
    heartbeat_ms=1000, lock_renew_ms=1000,
)
consumer.subscribe("T")
@consumer.on_message
def handle(messages):
    print(*(message.body.decode() for message in messages), flush=True)
with consumer:
    time.sleep(600)
"""
LIVE_MS, LOCK_MS = 2500, 3000
"""In place of 120 s and 60 s: how long a silent client stays a member, and its lock its own. The clients of these tests tell of
themselves once a second in place of 30 s and 20 s, so that the proportions are as by default."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serve]:
    started = Serve(
        tmp_path / "store",
        settings={
            "channelExpiredTimeout": LIVE_MS,
            "rocketmq.broker.rebalance.lockMaxLiveTime": LOCK_MS,
            "broker.order_lock_orphan_ms": 500,
        },
    )
    started.start()
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def patient_server(tmp_path: Path) -> Iterator[Serve]:
    """With the default expiry: for a client that says nothing for as long as it reads."""
    started = Serve(tmp_path / "store")
    started.start()
    try:
        yield started
    finally:
        started.stop()


def test_a_client_stopped_with_a_long_poll_and_a_lock_gives_both_up_and_does_no_harm_when_it_goes_on(server: Serve):
    with Admin(nameserver=server.nameserver) as admin, Producer(group="P", nameserver=server.nameserver) as producer:
        admin.create_topic("T", queue_count=1)
        [queue] = producer.queues("T")
        member = subprocess.Popen([sys.executable, "-c", MEMBER, server.nameserver], stdout=subprocess.PIPE, text=True)
        assert member.stdout is not None
        try:
            producer.send(Message("T", b"first"), queue=queue)
            assert member.stdout.readline() == "first\n"
            stand_still(member.pid)
            for number in range(20):
                producer.send(Message("T", b"%d" % number), queue=queue)
            got = consumed_by_another(server.nameserver, "19")
            member.send_signal(signal.SIGCONT)
            producer.send(Message("T", b"last"), queue=queue)
            rest = got[got[0] == "first" :]  # whose progress the other may not have saved
            assert [int(body) for body in rest] == list(range(20)), "in order, and each once, though the lock was another's"
            assert producer.send(Message("T", b"more"), queue=queue).queue_offset == 22
        finally:
            member.kill()
            member.communicate()


def consumed_by_another(nameserver: str, last: str) -> list[str]:
    """Consume in order as another member, which has to wait for the lock; return what came."""
    got: list[str] = []
    consumer = PushConsumer(
        group="C", nameserver=nameserver, orderly=True, instance_name="other", consume_from=ConsumeFrom.FIRST_OFFSET,
        heartbeat_ms=1000, lock_renew_ms=1000, rebalance_ms=1000,
    )  # fmt: skip
    consumer.subscribe("T")
    consumer.on_message(lambda messages: got.extend(message.body.decode() for message in messages))
    with consumer:
        until(lambda: last in got, "the lock of a client that is stopped")
    return got


ANSWERS = 150


def test_a_reader_of_a_kilobyte_a_second_gets_its_messages_and_keeps_nobody_waiting(patient_server: Serve):
    server = patient_server
    with Producer(group="P", nameserver=server.nameserver) as producer:
        for number in range(40):
            producer.send(Message("T", os.urandom(100_000), tag=str(number)), queue=MessageQueue("T", "broker-a", 0))
        before = memory_kb(server)
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(30)
        slow.connect(("127.0.0.1", server.broker_port))
        for opaque in range(ANSWERS):  # of 100 KB each, of which it reads a few bytes
            slow.sendall(encode(request_command(pull(offset=opaque % 40), opaque=opaque)))
        took, inbox = [], Inbox()
        for _ in range(10):
            inbox.feed(slow.recv(256))
            begin = time.monotonic()
            producer.send(Message("T", b"small"))
            took.append(time.monotonic() - begin)
            time.sleep(0.25)
        assert sorted(took)[len(took) // 2] < 0.5
        assert memory_kb(server) - before < 8 * 1024, "what it does not read does not pile up"
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        frames = inbox.frames()
        while len(frames) < ANSWERS:  # then it reads on, and has lost nothing
            more = slow.recv(1 << 20)
            assert more, f"closed after {len(frames)} of {ANSWERS} answers"
            inbox.feed(more)
            frames += inbox.frames()
        replies = [decode(header, body, serialization) for serialization, header, body in frames]
        assert [(reply.opaque, reply.code) for reply in replies] == [(opaque, 0) for opaque in range(ANSWERS)]
        slow.close()


def pull(offset: int) -> PullMessage:
    return PullMessage(
        consumer_group="G", topic="T", queue_id=0, queue_offset=offset, max_msg_nums=1, sys_flag=4, commit_offset=0,
        suspend_timeout_millis=0, sub_version=0, subscription="*", expression_type="TAG",
    )  # fmt: skip


def memory_kb(server: Serve) -> int:
    """Memory of its own: what it maps of files is not."""
    text = Path(f"/proc/{server.pids[0]}/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0])


def test_a_broker_that_stood_still_for_longer_than_clients_live_goes_on_with_all_of_them(server: Serve):
    got: list[bytes] = []
    consumer = PushConsumer(group="C", nameserver=server.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, heartbeat_ms=1000)
    consumer.subscribe("T")
    consumer.on_message(lambda messages: got.extend(message.body for message in messages))
    with Producer(group="P", nameserver=server.nameserver) as producer, consumer:
        producer.send(Message("T", b"before"))
        until(lambda: got == [b"before"], "the consumer")
        stand_still(server.pids[0])
        time.sleep(2 * LIVE_MS / 1000)
        os.kill(server.pids[0], signal.SIGCONT)
        until(lambda: producer.send(Message("T", b"after"), timeout_ms=5000), "the broker to answer again")
        until(lambda: got[-1] == b"after", "the consumer to hear of it")
    assert got == [b"before", b"after"]


def test_a_name_server_that_is_gone_and_comes_back_is_registered_with_again_and_nobody_stops_meanwhile(tmp_path: Path):
    port = free_port()
    names = [str(COMMAND), "nameserver", "--data", str(tmp_path / "names"), "--host", "127.0.0.1", "--nameserver-port", str(port)]
    broker_port = free_port()
    command = [
        str(COMMAND), "broker", "--data", str(tmp_path / "store"), "--nameserver", f"127.0.0.1:{port}",
        "--broker-port", str(broker_port), "--set", "registerNameServerPeriod=10000",
    ]  # fmt: skip
    first = Server(names, tmp_path / "names.log")
    first.wait_line("ready")
    broker = Server(command, tmp_path / "broker.log")
    broker.wait_line("ready")
    try:
        with Producer(group="P", nameserver=f"127.0.0.1:{port}", route_refresh_ms=1000) as producer:
            producer.send(Message("T", b"before"))
            first.kill()
            end = time.monotonic() + 15
            count = 0
            while (
                time.monotonic() < end
            ):  # in place of 90 s: longer than a client's look for routes, and than a registration's turn
                producer.send(Message("T", b"meanwhile"))
                count += 1
                time.sleep(0.05)
            first = Server(names, tmp_path / "names-again.log")
            first.wait_line("ready")
            until(lambda: registered(port), "the broker to register again", within_s=30)
            producer.send(Message("T", b"after"))
        with Admin(nameserver=f"127.0.0.1:{port}") as admin:
            stats = admin.topic_stats("T")
            assert sum(ends.max_offset for ends in stats.values()) == count + 2
            admin.create_topic("T2", queue_count=1)
        said = (tmp_path / "broker.log").read_text()
        told = said.count("connection lost") + said.count("registration failed")
        assert told == 1, "what happens again and again is said once"
    finally:
        first.stop()
        broker.stop()


def registered(port: int) -> bool:
    with Admin(nameserver=f"127.0.0.1:{port}") as admin:
        return bool(admin.cluster().broker_addr_table)
