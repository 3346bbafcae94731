"""A running cluster of Apache's moves to ours under load by two commands, and back to Apache's slave, without a loss."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.sync import Producer, PushConsumer
from halfmoon.model import ConsumeFrom, Message, SendStatus
from tests.interop.apache import Cluster
from tests.interop.failover_load import ROUTES_MS, Load, everything
from tests.interop.java_peer import JavaPeer
from tests.interop.ours import COMMAND
from tests.interop.process import Server, free_port
from tests.interop.test_replication import are_copies, count_of
from tests.interop.test_standby import start_slave
from tests.waiting import until

pytestmark = pytest.mark.slow
OF_BOTH = {
    "messageDelayLevel": "1s 2s", "mappedFileSizeCommitLog": 16 * 1024 * 1024, "transactionTimeOut": 6000,
    "transactionCheckInterval": 1000,
}  # fmt: skip
"""5.3.3 writes op records every 3 s: with a shorter timeout it asks about what is decided."""
PAUSE_MS_MAX = 10_000
"""Generous, for machines that are busy; the log says what it was."""


class Move:
    """An Apache cluster, and a slave of ours beside it."""

    def __init__(self, version: str, home: Path) -> None:
        self.apache = Cluster(version, home / "apache", settings={**OF_BOTH, "haListenPort": free_port()})
        self.copy = home / "slave"
        self.nameserver = self.apache.nameserver
        self._port = free_port()
        self.slave: Server | None = None

    def start(self) -> None:
        """Start both, and wait until the slave copies."""
        self.apache.start()
        self.slave = start_slave(self.copy, self.nameserver, self._port, slave_sync_ms=500, **OF_BOTH)
        self.wait(lambda addresses: 1 in addresses, "the slave to register")
        until(lambda: "following the master" in self.log, "the slave to follow", within_s=60)

    @property
    def log(self) -> str:
        """The log of the slave."""
        return self.copy.with_suffix(".log").read_text()

    def wait(self, holds: Callable[[dict[int, str]], bool], what: str) -> None:
        """Wait until the addresses of the broker at the name server are such."""
        with Admin(nameserver=self.nameserver) as admin:

            def addresses() -> dict[int, str]:
                known = admin.cluster().broker_addr_table.get("broker-a")
                return {} if known is None else known.broker_addrs

            until(lambda: holds(addresses()), what, within_s=60)

    def take_over(self) -> int:
        """Run the command; return for how many milliseconds there was no master."""
        command = [str(COMMAND), "cluster", "takeover", "broker-a", "-n", self.nameserver]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, f"{done.stderr}\n{self.log}"
        said = re.search(r"took over \S+ from \S+: (\d+) ms without a master", self.log)
        assert said is not None
        return int(said[1])

    def close(self) -> None:
        """End everything."""
        if self.slave is not None:
            self.slave.kill()
        self.apache.kill()


class Reader:
    """A consumer of ours of the topic ``sent`` from before the takeover on. ``got``: keys, and how often each came."""

    def __init__(self, nameserver: str) -> None:
        self.got: Counter[str] = Counter()
        self.consumer = PushConsumer(
            group="G_sent", nameserver=nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, route_refresh_ms=ROUTES_MS
        )
        self.consumer.subscribe("sent")
        self.consumer.on_message(lambda messages: self.got.update(bytes(message.body).decode() for message in messages))


def check_java(nameserver: str, acknowledged: dict[str, Any]) -> None:
    """Check what Java's producer was told."""
    stored = everything(nameserver, "java")
    lost = [key for key, told in acknowledged.items() if stored.get((told["queue_id"], told["queue_offset"])) != key]
    assert lost == []


def test_messages_for_a_point_in_time_of_rocketmq_5_move_too(tmp_path: Path) -> None:
    move = Move("5.3.3", tmp_path)
    move.apache.settings["timerFlushIntervalMs"] = 1000  # so often it notes which it has delivered
    try:
        move.start()
        with Producer(group="P", nameserver=move.nameserver) as producer, Admin(nameserver=move.nameserver) as admin:
            began = time.time()
            for body, after_s in ((b"early", 2), (b"soon", 60), (b"late", 75)):
                producer.send(Message("Timed", body, deliver_at=int((began + after_s) * 1000)))
            until(lambda: count_of(admin, "Timed") == 1, "the first one", within_s=30)
            time.sleep(3)  # it is noted, and no other is due
            move.take_over()
            assert time.time() < began + 58, "the others wait"
            until(lambda: count_of(admin, "Timed") >= 3, "those that waited", within_s=90)
            assert time.time() > began + 74
            time.sleep(3)
            assert sorted(everything(move.nameserver, "Timed").values()) == ["early", "late", "soon"]
    finally:
        move.close()


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_a_cluster_moves_under_load_and_loses_and_repeats_nothing(
    version: str, java: Callable[..., JavaPeer], tmp_path: Path
) -> None:
    move, peer = Move(version, tmp_path), java(version)
    order: dict[str, Any] = {"group": "mover", "nameserver": move.nameserver, "topic": "java"}
    try:
        move.start()
        load = Load(move.nameserver, timed=False).start()
        peer.call("producer", timeout_ms=1000, routes_ms=ROUTES_MS, **order)
        peer.call("load", body="key-{n}", keys="key-{n}", pause_ms=3, **order)
        until(lambda: len(load.ledger.sent) > 500, "the load to begin", within_s=60)
        reader = Reader(move.nameserver)
        with reader.consumer:
            until(lambda: len(reader.got) > 200, "the consumer to begin", within_s=60)
            known, known_java = len(load.ledger.sent), peer.call("load.count", group=order["group"])
            pause_ms = move.take_over()
            until(lambda: len(load.ledger.sent) > known + 300, "the load to go on", within_s=60)
            until(lambda: peer.call("load.count", group=order["group"]) > known_java + 300, "Java to go on", within_s=90)
            ledger, theirs = load.stop(), peer.call("load.stop", group=order["group"])
            peer.call("producer.stop", group=order["group"])
            until(lambda: not ledger.sent.keys() - reader.got.keys(), "the consumer to read everything", within_s=60)
        repeated = sum(reader.got.values()) - len(reader.got)
        print(f"{version}: {pause_ms} ms without a master; pauses of sends {ledger.gaps_s}; {repeated} consumed twice;", end=" ")
        print(f"{len(ledger.sent)} sent, {len(ledger.committed)} committed, {len(ledger.delayed)} delayed,", end=" ")
        print(f"{len(theirs['acknowledged'])} by Java; failures {dict(ledger.failures)}")

        assert pause_ms < PAUSE_MS_MAX
        check_java(move.nameserver, theirs["acknowledged"])
        stored = everything(move.nameserver, "sent")
        assert not {key: place for key, place in ledger.sent.items() if stored.get(place) != key}, "acknowledged and lost"
        assert max(Counter(stored.values()).values()) == 1
        missing: Callable[[], set[str]] = lambda: ledger.committed - set(everything(move.nameserver, "decided").values())  # noqa: E731
        until(lambda: not missing(), "checks of decisions that the old master refused", within_s=60)
        decided = Counter(everything(move.nameserver, "decided").values())
        assert not ledger.rolled_back & set(decided)
        assert max(decided.values()) == 1
        until(lambda: not ledger.delayed - set(everything(move.nameserver, "later").values()), "delayed messages")
        assert max(Counter(everything(move.nameserver, "later").values()).values()) == 1
    finally:
        move.close()


def send(nameserver: str, count: int) -> None:
    """Send messages to the topic ``sent``."""
    with Producer(group="P", nameserver=nameserver) as producer:
        for number in range(count):
            assert producer.send(Message("sent", b"%d" % number)).status is SendStatus.SEND_OK


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_the_old_master_comes_back_as_a_slave_and_takes_its_place_again(version: str, tmp_path: Path) -> None:
    move = Move(version, tmp_path)
    theirs = move.apache.stores[0]
    try:
        move.start()
        send(move.nameserver, 30)
        move.take_over()
        send(move.nameserver, 30)
        move.apache.stop_master()
        java_slave = move.apache.start_slave(theirs)
        until(lambda: are_copies(move.copy / "commitlog", theirs / "commitlog"), "Apache's slave to copy", within_s=90)
        assert move.slave is not None
        assert move.slave.stop() == 0
        until(lambda: are_copies(move.copy / "commitlog", theirs / "commitlog"), "Apache's slave to have the end", within_s=30)
        java_slave.stop()
        move.apache.start_master()
        address = f"127.0.0.1:{move.apache.broker_port}"
        move.wait(lambda addresses: addresses.get(0) == address, "Apache's master to register")
        send(move.nameserver, 30)
        assert len(everything(move.nameserver, "sent")) == 90
    finally:
        move.close()
