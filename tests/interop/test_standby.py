"""A slave of ours copies the log and the tables of Apache's masters and of ours, and a broker starts on its directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.sync import PushConsumer
from halfmoon.model import ConsumeFrom
from tests.interop.apache import Cluster
from tests.interop.ours import COMMAND, Serve
from tests.interop.process import Server, free_port
from tests.interop.test_replication import OURS, Sender, are_copies, count_of
from tests.waiting import until


class Pair:
    """A master, of Apache's or ours, and a slave of ours."""

    def __init__(self, kind: str, home: Path) -> None:
        self.kind, self.store = kind, home / "slave"
        self.master: Serve | Cluster
        if kind == "ours":
            self.master, self.log = Serve(home / "master", settings=OURS), home / "master" / "commitlog"
        else:
            self.master = Cluster(kind, home / "apache", settings={**OURS, "haListenPort": free_port()})
            self.log = self.master.stores[0] / "commitlog"
        self.sender = Sender(lambda: self.master.nameserver)

    def start_slave(self) -> None:
        """Start the slave."""
        command = [
            str(COMMAND),
            "broker",
            "--slave-of",
            "broker-a",
            "--nameserver",
            self.master.nameserver,
            "--data",
            str(self.store),
        ]
        command += [word for key, value in {**OURS, "slave_sync_ms": 500}.items() for word in ("--set", f"{key}={value}")]
        self.slave = Server([*command, "--log", "info"], self.store.with_suffix(".log"))
        self.slave.wait_line("halfmoon ready")

    def is_copied(self) -> bool:
        """Whether the slave has every file of the master's log, byte by byte."""
        return are_copies(self.log, self.store / "commitlog")


@pytest.fixture(params=["ours", "4.9.7", "5.3.3"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(request.param, tmp_path)
    try:
        made.master.start()
        yield made
    finally:
        made.slave.kill()
        made.master.kill()


@pytest.mark.slow
def test_a_slave_of_ours_copies_everything_and_takes_the_place_of_its_master(pair: Pair) -> None:
    if pair.kind == "ours":
        pair.sender.send(50)  # it gets the whole log; of an Apache master, an empty slave gets the last file
    pair.start_slave()
    pair.sender.send(1)
    until(pair.is_copied, "the slave to connect", within_s=60)
    pair.sender.send(50)
    until(pair.is_copied, "the slave to copy everything", within_s=60)

    pair.slave.kill()
    pair.sender.send(50)
    pair.start_slave()
    until(pair.is_copied, "a slave that was killed to copy the rest", within_s=60)

    if pair.kind == "ours":
        pair.master.kill()
        pair.master.start()
        pair.sender.send(20)
        until(pair.is_copied, "the slave to go on after a kill of the master", within_s=60)
    assert len(list(pair.log.iterdir())) > 2, "the log has several files"

    topics = pair.store / "config" / "topics.json"
    until(lambda: '"Decided"' in topics.read_text(), "the slave to have the topics", within_s=30)
    pair.master.kill()
    pair.slave.stop()
    sent, got = pair.sender.sent, set[str]()
    successor = Serve(pair.store, settings=OURS)
    try:
        successor.start()
        pair.master, count = successor, len(sent)
        consumer = PushConsumer(group="G", nameserver=successor.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("Copied")
        consumer.on_message(lambda messages: got.update(message.body.split()[0].decode() for message in messages))
        with consumer:
            pair.sender.send(5)
            until(lambda: got == set(sent), "a consumer to read all that both masters stored", within_s=60)
        with Admin(nameserver=successor.nameserver) as admin:
            assert count_of(admin, "Decided") == (count + 6) // 2, "decided half messages are delivered once"
    finally:
        successor.kill()
