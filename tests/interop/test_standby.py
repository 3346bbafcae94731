"""A slave of ours copies masters of Apache's and of ours; consumers read from it, and a broker starts on its directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.sync import PushConsumer
from halfmoon.model import ConsumeFrom
from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.ours import COMMAND, Serve
from tests.interop.peer import Peer
from tests.interop.process import Server, free_port
from tests.interop.test_replication import OURS, Sender, are_copies, count_of
from tests.waiting import until


def start_slave(store: Path, nameserver: str, port: int, **settings: object) -> Server:
    """Start a slave of broker-a on a directory; return its process."""
    command = [str(COMMAND), "broker", "--slave-of", "broker-a", "--nameserver", nameserver, "--data", str(store)]
    command += ["--broker-port", str(port), "--log", "info"]
    command += [word for key, value in {**OURS, **settings}.items() for word in ("--set", f"{key}={value}")]
    slave = Server(command, store.with_suffix(".log"))
    slave.wait_line("halfmoon ready")
    return slave


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
        self.slave = start_slave(self.store, self.master.nameserver, free_port(), slave_sync_ms=500)

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


class Readers:
    """Consumers of Apache's and of ours, each in a group of its own."""

    def __init__(self, peer: Peer, nameserver: str) -> None:
        self._peer, self.got = peer, set[str]()
        self.name = f"slave-{nameserver}"
        peer.call("push", name=self.name, group="G_apache", nameserver=nameserver, topic="Copied")
        self.ours = PushConsumer(group="G_ours", nameserver=nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, pull_pause_ms=100)
        self.ours.subscribe("Copied")
        self.ours.on_message(lambda messages: self.got.update(message.body.split()[0].decode() for message in messages))
        self.ours.start()

    def apaches(self, count: int) -> set[str]:
        """Return the ids of what Apache's consumer has got, once these are so many messages."""
        return {each["msg_id"] for each in self._peer.call("push.wait", name=self.name, count=count, timeout_ms=90_000)}

    def close(self) -> None:
        """End both."""
        self._peer.call("push.stop", name=self.name)
        self.ours.close()


@pytest.mark.slow
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_consumers_go_on_from_a_slave_of_ours_while_the_master_is_away_and_back_to_it(
    version: str, java: Callable[..., JavaPeer], tmp_path: Path
) -> None:
    peer = java(version)
    names, port = Cluster(version, tmp_path / "apache", masters=0), free_port()
    names.start()
    master = Serve(tmp_path / "master", settings=OURS, nameserver=names.nameserver)
    slave = None
    try:
        master.start()
        address, sender = f"127.0.0.1:{port}", Sender(lambda: names.nameserver)
        sender.send(20)
        slave = start_slave(tmp_path / "slave", names.nameserver, port, slave_sync_ms=600_000, slaveReadEnable="true")
        logs = master.data / "commitlog", tmp_path / "slave" / "commitlog"
        until(lambda: are_copies(*logs), "the slave to copy", within_s=60)
        with Admin(nameserver=names.nameserver) as admin:
            until(lambda: admin.cluster().broker_addr_table["broker-a"].broker_addrs.get(1) == address, "the slave to register")
            sender.send(20)
            until(lambda: count_of(admin, "Copied") == 40, "delayed messages to be delivered", within_s=30)
            until(lambda: are_copies(*logs), "the slave to copy the rest", within_s=60)
            until(lambda: admin.brokers()[1].behind_bytes == 0, "the slave to know so")
            listed = peer.mqadmin("clusterList", "-n", names.nameserver)
            assert (address in listed, master.broker in listed) == (True, True)
            assert "commitLogMaxOffset" in peer.mqadmin("brokerStatus", "-n", names.nameserver, "-b", address)
            if version == "5.3.3":
                assert "#MasterAddr" in peer.mqadmin("haStatus", "-n", names.nameserver, "-b", address)
            master.kill()
            readers = Readers(peer, names.nameserver)  # which can read nowhere but at the slave

            until(lambda: readers.got == set(sender.sent), "our consumer to read all from the slave", within_s=90)
            assert len(readers.apaches(40)) == 40
            master.start()
            sender.send(10)
            until(lambda: readers.got == set(sender.sent), "our consumer to be back at the master", within_s=90)
            assert len(readers.apaches(50)) == 50
            readers.close()
        assert "Traceback" not in (tmp_path / "slave.log").read_text()
    finally:
        if slave is not None:
            slave.kill()
        master.kill()
        names.kill()
