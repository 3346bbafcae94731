"""One store directory, opened in turn by Apache's broker 4.9.7 and by ours: each serves what the other wrote, and goes on."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer, body, is_body
from tests.interop.ours import COMMAND, Serve
from tests.interop.process import free_port

VERSION, TOPIC, GROUP = "4.9.7", "BothWays", "both-ways"
LARGE = [(5000, "repeat"), (100_000, "noise"), (1 << 20, "noise")]


@contextmanager
def opened(who: str, home: Path, data: Path) -> Iterator[Serve | Cluster]:
    """Open the directory with ``ours`` or ``apache``, and stop it cleanly."""
    home.mkdir(exist_ok=True)
    server = Serve(data).start() if who == "ours" else Cluster(VERSION, home, store=data).start()
    try:
        yield server
    finally:
        server.stop()


class Session:
    """What one opening of the directory sends and reads, with the Java client."""

    def __init__(self, peer: JavaPeer, server: Serve | Cluster, name: str) -> None:
        self.peer, self.name = peer, name
        self.order: dict[str, Any] = {"topic": TOPIC, "group": GROUP, "nameserver": server.nameserver}

    def write(self) -> list[dict[str, Any]]:
        """Send small messages with keys and tags, a batch, and large ones; return the results of the small ones."""
        self.peer.call("producer", **self.order)
        text = self.name + " {n}"
        sent = self.peer.call(
            "send", body=text, keys=self.name + "-{n}", tag="t" + self.name[-1], count=50, select=True, **self.order
        )
        self.peer.call("send.batch", body=self.name + " batch {n}", count=10, **self.order)
        for size, fill in LARGE:
            self.peer.call("send", size=size, fill=fill, keys=f"{self.name}-large", queue_id=0, **self.order)
        self.peer.call("producer.stop", **self.order)
        return list(sent)

    def read(self, message_count: int) -> list[dict[str, Any]]:
        """Read every queue from its beginning to its end; the offsets must have no gap."""
        name = "reader-" + self.name
        self.peer.call("lite", name=name, **self.order | {"group": name})
        found = self.peer.call("lite.poll", name=name, count=message_count, timeout_ms=20_000)
        self.peer.call("lite.stop", name=name)
        for queue_id in {m["queue_id"] for m in found}:
            offsets = [m["queue_offset"] for m in found if m["queue_id"] == queue_id]
            assert offsets == list(range(len(offsets)))
        return list(found)

    def by_key(self, key: str) -> list[dict[str, Any]]:
        """Find messages by key; waits for the index a little."""
        self.peer.call("admin", **self.order)
        end = time.monotonic() + 60
        try:
            while True:
                try:
                    return list(self.peer.call("query.key", key=key, **self.order))
                except Exception:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.1)
        finally:
            self.peer.call("admin.stop")

    def consume(self, message_count: int) -> list[dict[str, Any]]:
        """Consume as the group, whose progress the directory keeps."""
        self.peer.call("push", name="group", **self.order)
        self.peer.call("push.wait", name="group", count=message_count, timeout_ms=20_000)
        time.sleep(0.3)
        return list(self.peer.call("push.stop", name="group"))


PER_SESSION = 50 + 10 + len(LARGE)


@pytest.mark.slow
@pytest.mark.parametrize("order", [("apache", "ours", "apache"), ("ours", "apache", "ours")], ids=["apache-first", "ours-first"])
def test_a_directory_goes_from_one_broker_to_the_other_and_back(
    java: Callable[..., JavaPeer], tmp_path: Path, order: tuple[str, ...]
) -> None:
    peer, data = java(VERSION), tmp_path / "store"
    sent: dict[str, dict[str, Any]] = {}
    before: list[dict[str, Any]] = []
    for turn, who in enumerate(order):
        name = f"turn{turn}"
        with opened(who, tmp_path / name, data) as server:
            session = Session(peer, server, name)
            if turn:
                _serves_all(session, before, sent, turn)
            sent |= {f"{name} {i}": result for i, result in enumerate(session.write())}
            before = session.read(PER_SESSION * (turn + 1))
            _serves_all(session, before, sent, turn + 1)
            consumed = session.consume(PER_SESSION)
            assert len(consumed) == PER_SESSION, "the group's progress came along"
        fsck = subprocess.run([str(COMMAND), "fsck", str(data)], capture_output=True, text=True)
        assert fsck.returncode == 0, f"after {who}: {fsck.stdout}{fsck.stderr}"


def _serves_all(session: Session, before: list[dict[str, Any]], sent: dict[str, dict[str, Any]], turns: int) -> None:
    """Everything that was written in so many turns is there: same place, same bytes, same ids, found by key."""
    found = session.read(PER_SESSION * turns)
    places = {(m["queue_id"], m["queue_offset"]): (m["physical_offset"], m["crc"], m["msg_id"], m["store_ms"]) for m in found}
    assert places == {
        (m["queue_id"], m["queue_offset"]): (m["physical_offset"], m["crc"], m["msg_id"], m["store_ms"]) for m in before
    }
    bodies = {m["body"]: m for m in found if "body" in m}
    for text, result in sent.items():
        assert (bodies[text]["queue_id"], bodies[text]["queue_offset"]) == (result["queue_id"], result["queue_offset"])
        assert bodies[text]["msg_id"] == result["msg_id"]
    for size, fill in LARGE:
        assert sum(is_body(m, body(size, fill)) for m in found) == turns
    for turn in range(turns):
        assert [m["body"] for m in session.by_key(f"turn{turn}-7")] == [f"turn{turn} 7"]
        assert len(session.by_key(f"turn{turn}-large")) == len(LARGE)


@pytest.mark.slow
@pytest.mark.parametrize(("killed", "opens"), [("ours", "apache"), ("apache", "ours")])
def test_each_opens_what_a_killed_broker_of_the_other_left(
    java: Callable[..., JavaPeer], tmp_path: Path, killed: str, opens: str
) -> None:
    peer, data = java(VERSION), tmp_path / "store"
    with opened(killed, tmp_path / killed, data) as server:
        session = Session(peer, server, "turn0")
        sent = session.write()
        before = session.read(PER_SESSION)
        server.kill()

    with opened(opens, tmp_path / opens, data) as server:
        _serves_all(Session(peer, server, "turn1"), before, {f"turn0 {i}": result for i, result in enumerate(sent)}, 1)


def halfmoon(*words: str | Path) -> None:
    """Run a command of ours; it must succeed."""
    done = subprocess.run([str(COMMAND), *map(str, words)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def wait_saved(data: Path, expected: dict[int, int]) -> None:
    """Wait until the group's progress is in the directory's tables."""
    table, end = data / "config" / "consumerOffset.json", time.monotonic() + 60
    while True:
        found = re.search(rf'"{TOPIC}@{GROUP}":{{(.*?)}}', table.read_text()) if table.exists() else None
        if found and {int(queue): int(offset) for queue, offset in re.findall(r"(\d+):(\d+)", found[1])} == expected:
            return
        assert time.monotonic() < end, found
        time.sleep(0.1)


@pytest.mark.slow
def test_a_backup_of_our_running_broker_is_served_by_apaches_and_copied_by_its_slave(
    java: Callable[..., JavaPeer], tmp_path: Path
) -> None:
    peer, data, restored = java(VERSION), tmp_path / "store", tmp_path / "restored"
    with opened("ours", tmp_path / "ours", data) as server:
        session = Session(peer, server, "turn0")
        sent = session.write()
        ends: dict[int, int] = {}
        for message in session.read(PER_SESSION):
            ends[message["queue_id"]] = message["queue_offset"] + 1
        assert len(session.consume(PER_SESSION)) == PER_SESSION
        wait_saved(data, ends)
        session.name = "turn1"
        more = session.write()
        before = session.read(2 * PER_SESSION)
        peer.call("producer", **session.order)
        peer.call("send", body="due where it is restored", level=4, keys="late", **session.order | {"topic": "Later"})
        peer.call("producer.stop", **session.order)
        halfmoon("backup", data, tmp_path / "backup", "--verify")
    halfmoon("backup", tmp_path / "backup", restored)

    everything = {f"turn0 {i}": result for i, result in enumerate(sent)} | {f"turn1 {i}": result for i, result in enumerate(more)}
    cluster = Cluster(VERSION, tmp_path / "apache", store=restored, settings={"haListenPort": free_port()}).start()
    try:
        session = Session(peer, cluster, "turn2")
        _serves_all(session, before, everything, 2)
        bodies = [message.get("body", "") for message in session.consume(PER_SESSION)]
        assert len(bodies) == PER_SESSION
        assert not [text for text in bodies if text.startswith("turn0")], (
            "what was acknowledged before the backup does not come again"
        )
        peer.call("push", name="late", **session.order | {"topic": "Later", "group": "late"})
        peer.call("push.wait", name="late", count=1, timeout_ms=60_000)
        assert [message["body"] for message in peer.call("push.stop", name="late")] == ["due where it is restored"]
        session.write()
        last = max(message["physical_offset"] for message in session.read(3 * PER_SESSION))
        _is_copied(cluster, tmp_path / "slave", last + 100)
    finally:
        cluster.stop()
    halfmoon("fsck", restored)


def _is_copied(cluster: Cluster, store: Path, count_bytes: int) -> None:
    """A slave of Apache's gets the first bytes of the master's log."""
    cluster.start_slave(store)
    name, end = "0" * 20, time.monotonic() + 60
    with open(cluster.stores[0] / "commitlog" / name, "rb") as file:
        wanted = file.read(count_bytes)
    while True:
        copy = store / "commitlog" / name
        if copy.exists():
            with open(copy, "rb") as file:
                if file.read(count_bytes) == wanted:
                    return
        assert time.monotonic() < end, "the slave does not have what the master has"
        time.sleep(0.5)
