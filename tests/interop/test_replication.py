"""Apache's slaves copy the log of our master byte by byte, serve its messages while it is away, and decide its answers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.sync import Producer, PushConsumer
from halfmoon.client.sync_transaction import TransactionProducer
from halfmoon.model import ConsumeFrom, LocalTransactionState, Message, SendStatus, StoredMessage
from halfmoon.wire.bodies import TimerCheckpoint
from tests.interop.apache import Cluster
from tests.interop.ours import Serve
from tests.interop.process import free_port
from tests.waiting import stand_still, until

FILE_BYTES = 256 * 1024
OURS = {"mappedFileSizeCommitLog": FILE_BYTES, "messageDelayLevel": "1s 2s"}


class Listener:
    """Commits one message in two. ``executed`` are the arguments of the local transactions."""

    def __init__(self) -> None:
        self.executed: list[int] = []

    def execute(self, message: Message, argument: int) -> LocalTransactionState:
        """Return the state."""
        self.executed.append(argument)
        return LocalTransactionState.ROLLBACK if argument % 2 else LocalTransactionState.COMMIT

    def check(self, message: StoredMessage) -> LocalTransactionState:
        """Return what a decision that was lost is answered with."""
        return LocalTransactionState.UNKNOWN


class Sender:
    """A user of a broker that may have another address later. ``sent`` are the first words of the bodies in topic Copied."""

    def __init__(self, nameserver: Callable[[], str]) -> None:
        self._nameserver = nameserver
        self.sent: list[str] = []

    def send(self, count: int) -> None:
        """Send plain, delayed and half messages, of which one in two is committed."""
        nameserver = self._nameserver()
        with (
            Producer(group="P", nameserver=nameserver) as producer,
            TransactionProducer(group="TP", nameserver=nameserver, listener=Listener()) as transactions,
        ):
            for _ in range(count):
                number = len(self.sent)
                self.sent.append(f"m{number}")
                producer.send(Message("Copied", f"m{number} {'x' * 3000}".encode(), delay_level=int(number % 5 == 0)))
                transactions.send_in_transaction(Message("Decided", b"x" * 500), number)


def are_copies(master: Path, slave: Path) -> bool:
    """Whether a slave has every file of its master's log, byte by byte, but for one that was made ahead and is empty."""
    files = {path.name: path.read_bytes() for path in sorted(master.iterdir())}
    there = {path.name: path.read_bytes() for path in slave.iterdir()} if slave.exists() else {}
    return all(there.get(name, bytes(len(data))) == data for name, data in files.items())


def count_of(admin: Admin, topic: str) -> int:
    """Return how many messages a topic has."""
    return sum(stats.max_offset - stats.min_offset for stats in admin.topic_stats(topic).values())


class Pair:
    """A name server and a slave of Apache's, and our master."""

    def __init__(self, version: str, home: Path, **settings: str) -> None:
        self.apache = Cluster(version, home / "apache", masters=0, settings={**OURS, "slaveReadEnable": "true"})
        self.master = Serve(home / "master", settings={**OURS, **settings}, nameserver=self.apache.nameserver)
        self._slave_store = home / "slave"
        self._sender = Sender(lambda: self.master.nameserver)
        self.sent, self.send = self._sender.sent, self._sender.send

    def start(self) -> Pair:
        """Start name server, master and slave."""
        self.apache.start()
        self.apache.broker_ports, self.apache.stores = [0], [self._slave_store]  # as those of the slave's master
        self.master.start()
        self.start_slave()
        return self

    def start_slave(self) -> None:
        """Start the slave."""
        self.slave = self.apache.start_slave(self._slave_store)

    @property
    def slave_log(self) -> str:
        """What the slave logs."""
        paths = [self.apache.home / "broker-a-slave.log", *(self.apache.home / "logs").rglob("*.log")]
        return "".join(path.read_text(errors="replace") for path in paths)

    def timer(self) -> TimerCheckpoint:
        """Return how far the slave knows the timer of its master."""
        path = self._slave_store / "config" / "timercheck"
        return TimerCheckpoint.decode(path.read_bytes()[:56]) if path.exists() else TimerCheckpoint(0)

    def is_copied(self) -> bool:
        """Whether the slave has every file of the master's log, byte by byte."""
        return are_copies(self.master.data / "commitlog", self._slave_store / "commitlog")


@pytest.fixture(params=["4.9.7", "5.3.3"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(request.param, tmp_path)
    try:
        yield made.start()
    finally:
        made.apache.kill()
        made.master.kill()


@pytest.mark.slow
def test_a_slave_of_apache_has_every_byte_of_our_log(pair: Pair) -> None:
    pair.send(1)
    until(pair.is_copied, "the slave to connect", within_s=30)  # an empty one is sent the last file only
    pair.send(100)
    until(pair.is_copied, "the slave to copy everything", within_s=30)

    pair.slave.kill()
    pair.send(100)
    pair.start_slave()
    until(pair.is_copied, "a slave that was killed to copy the rest", within_s=60)

    pair.master.stop()
    pair.master.start()
    pair.send(50)
    until(pair.is_copied, "the slave to go on after a restart of the master", within_s=60)

    pair.master.kill()
    pair.master.start()
    pair.send(50)
    until(pair.is_copied, "the slave to go on after a kill of the master", within_s=60)
    assert len(list((pair.master.data / "commitlog").iterdir())) > 3, "the log has several files"

    got: set[str] = set()
    with Admin(nameserver=pair.master.nameserver) as admin:
        assert {0, 1} == set(admin.cluster().broker_addr_table["broker-a"].broker_addrs)
    until(lambda: _topics_of(pair) >= {"Copied", "Decided"}, "the slave to have the topics", within_s=90)
    pair.master.kill()
    consumer = PushConsumer(group="G", nameserver=pair.apache.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe("Copied")
    consumer.on_message(lambda messages: got.update(message.body.split()[0].decode() for message in messages))
    with consumer:
        until(lambda: got >= set(pair.sent), "a consumer to read all from the slave", within_s=60)

    pair.slave.stop()
    successor = Serve(pair.apache.stores[0], settings=OURS, nameserver=pair.master.nameserver)
    try:
        successor.start()
        pair.master, count = successor, len(pair.sent)
        pair.send(5)
        with Admin(nameserver=successor.nameserver) as admin:
            delayed = sum(number % 5 == 0 for number in range(count + 5))
            until(lambda: count_of(admin, "Copied") >= count + 5, "delayed messages of both masters", within_s=30)
            assert count_of(admin, "Copied") <= count + 5 + delayed, "those delivered since the slave asked for progress come again"
            assert count_of(admin, "Decided") == (count + 6) // 2, "decided half messages are delivered once"
    finally:
        successor.kill()


def _topics_of(pair: Pair) -> set[str]:
    return {name for name in ("Copied", "Decided") if f'"{name}"' in _topics_text(pair)}


@pytest.mark.slow
def test_sends_and_half_messages_of_a_sync_master_are_answered_as_its_slave_copies(tmp_path: Path) -> None:
    pair, listener = Pair("4.9.7", tmp_path, brokerRole="SYNC_MASTER", slaveTimeout="1000"), Listener()
    try:
        pair.start()
        with (
            Producer(group="P", nameserver=pair.master.nameserver) as producer,
            TransactionProducer(group="TP", nameserver=pair.master.nameserver, listener=listener) as transactions,
        ):

            def statuses(number: int) -> tuple[SendStatus, SendStatus, LocalTransactionState]:
                half = transactions.send_in_transaction(Message("Half", b"x"), number)
                return producer.send(Message("Copied", b"x")).status, half.status, half.local_state

            assert statuses(0)[:2] == (SendStatus.SLAVE_NOT_AVAILABLE,) * 2, "an Apache slave reports 5 s after its start"
            ok = (SendStatus.SEND_OK, SendStatus.SEND_OK, LocalTransactionState.COMMIT)
            until(lambda: statuses(2) == ok, "the slave to connect", within_s=30)
            stand_still(pair.slave.pid)
            late = (SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT, LocalTransactionState.ROLLBACK)
            assert statuses(4) == late
            os.kill(pair.slave.pid, signal.SIGCONT)
            until(lambda: statuses(6) == ok, "the slave to go on", within_s=30)
            pair.slave.kill()
            missing = (SendStatus.SLAVE_NOT_AVAILABLE, SendStatus.SLAVE_NOT_AVAILABLE, LocalTransactionState.ROLLBACK)
            until(lambda: statuses(8) == missing, "the master to miss its slave", within_s=30)
        assert set(listener.executed) == {2, 6}, "no local transaction ran whose half message has no copy"
    finally:
        pair.apache.kill()
        pair.master.kill()


@pytest.mark.slow
def test_a_slave_of_rocketmq_5_that_takes_over_delivers_what_waits_for_a_point_in_time_and_nothing_again(tmp_path: Path) -> None:
    pair = Pair("5.3.3", tmp_path)
    pair.apache.settings["timerFlushIntervalMs"] = 1000
    try:
        pair.start()
        with Producer(group="P", nameserver=pair.master.nameserver) as producer:
            began = time.time()
            for body, after_s in ((b"early", 1), (b"late", 100)):
                producer.send(Message("Timed", body, deliver_at=int((began + after_s) * 1000)))

        def is_known() -> bool:
            known = pair.timer()
            return known.master_queue_offset == known.queue_offset == 2 and known.read_ms > (began + 2) * 1000

        until(is_known, "the slave to know how far the timer is", within_s=60)
        until(lambda: "Timed" in _topics_text(pair), "the slave to ask for tables", within_s=90)
        assert "slave synchronize" in pair.slave_log.lower() or "Update slave" in pair.slave_log
        assert [line for line in pair.slave_log.splitlines() if "timer" in line.lower() and "xception" in line] == []
        pair.master.kill()
        pair.slave.stop()
        pair.apache.broker_ports = [free_port()]
        pair.apache.start_master()
        with Admin(nameserver=pair.apache.nameserver) as admin:
            until(lambda: count_of(admin, "Timed") >= 2, "the new master to deliver the other", within_s=120)
            time.sleep(3)
            assert count_of(admin, "Timed") == 2, "neither comes again"
        assert time.time() > began + 99
    finally:
        pair.apache.kill()
        pair.master.kill()


def _topics_text(pair: Pair) -> str:
    path = pair.apache.stores[0] / "config" / "topics.json"
    return path.read_text() if path.exists() else ""
