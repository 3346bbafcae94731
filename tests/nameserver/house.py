"""A name server in virtual time, spoken to in frames: what the tests of its core and of its answers share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from halfmoon.effects import Work
from halfmoon.errors import StoreLocked
from halfmoon.nameserver.nameserver import NameServer
from halfmoon.nameserver.settings import NameServerSettings
from halfmoon.testing.bench import Bench
from halfmoon.wire.bodies import RegisterBrokerBody, TopicConfig, TopicConfigTable, encode_register_body
from halfmoon.wire.bodies.topics import DataVersion
from halfmoon.wire.command import Command, encode

START = 1_700_000_000_000


class MemoryDisk:
    """As much of a disk as a name server uses."""

    def __init__(self, **files: bytes) -> None:
        self.files: dict[str, bytes] = {name.replace("__", "."): data for name, data in files.items()}
        self.fails = False
        self.is_locked = False

    def lock(self, path: str) -> MemoryDisk:
        if self.is_locked:
            raise StoreLocked(path)
        self.is_locked = True
        return self

    def release(self) -> None:
        self.is_locked = False

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def save(self, path: str, data: bytes, *, keep_previous: bool = True, private: bool = False) -> None:
        if self.fails:
            raise OSError(28, "No space left on device")
        if path in self.files:
            self.files[path + ".bak"] = self.files[path]
        self.files[path] = data


class House(Bench):
    """A name server, its connections and its clock."""

    def __init__(self, disk: MemoryDisk | None = None, **settings: Any) -> None:
        super().__init__(START)
        self.works: list[Work[Any]] = []
        self.begin(NameServer(NameServerSettings(**settings), disk, now=self.instant))  # type: ignore[arg-type]

    def connect(self, peer: int = 0, remote: str | None = None) -> int:
        peer = peer or len(self.inboxes) + 1
        return super().connect(peer, remote or f"192.0.2.1:{10_000 + peer}")

    def held(self, work: Work[Any]) -> list[Work[Any]]:
        return self.works

    def run_effects(self) -> None:
        self.carry_out()

    def carry_out(self, *, work: bool = True) -> None:
        super().run_effects()
        while work and self.works:
            self.work()
            super().run_effects()

    def work(self) -> None:
        self.run_work(self.works.pop(0))

    def send(self, peer: int, *pieces: bytes) -> None:
        for piece in pieces:
            self.feed(peer, piece)
        self.turn()

    def taken(self, peer: int) -> list[Command]:
        taken, self.received[peer] = self.received[peer], []
        return taken

    def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", *, peer: int = 0, version: int = 409, **more: Any
    ) -> Command:
        peer = peer or self.connect()
        self.send(peer, encode(Command(code=code, opaque=77, fields=fields or {}, body=body, version=version, **more)))
        (reply,) = self.taken(peer)
        assert (reply.opaque, reply.is_response) == (77, True)
        return reply

    def register(self, name: str = "broker-a", broker_id: int = 0, *, peer: int = 0, **options: Any) -> Command:
        return self.ask(103, register_fields(name, broker_id, **options.pop("fields", {})), register_body(**options), peer=peer)

    def route(self, topic: str = "t") -> Any:
        reply = self.ask(105, {"topic": topic})
        return json.loads(bytes(reply.body)) if reply.code == 0 else reply.code


def register_fields(name: str = "broker-a", broker_id: int = 0, **more: str) -> dict[str, str]:
    address = f"192.0.2.7:{20_000 + broker_id + 10 * ord(name[-1])}"
    fields = {"brokerName": name, "brokerAddr": address, "clusterName": "C", "brokerId": str(broker_id)}
    return {**fields, "haServerAddr": address + "9", **more}


def table(topics: Iterable[str] = ("t",), counter: int = 1, **more: Any) -> RegisterBrokerBody:
    configs = {name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=3, perm=6, **more) for name in topics}
    return RegisterBrokerBody(TopicConfigTable(DataVersion(counter, 1_700_000_000_000), configs))


def register_body(**options: Any) -> bytes:
    return encode_register_body(table(**options))
