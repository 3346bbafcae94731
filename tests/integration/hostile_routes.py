"""Hostile name servers, hostile brokers and compressed bombs: what a client and a name server take from them fits into memory.

    python -m tests.integration.hostile_routes [--rounds 2000] [--seed 1]

A client asks a name server that answers anything; a name server is registered with and given values by brokers that send anything,
and what it then answers must be what a client takes. The process may not take more memory than `GROWTH_MB`; an end of it is found.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from halfmoon.client.core.nameservers import NameServers
from halfmoon.client.core.route import read_queues
from halfmoon.client.core.route_table import QUEUES_MAX, RouteTable
from halfmoon.effects import Call, Gather, Op, SteadyTime
from halfmoon.errors import HalfmoonError, PeerError
from halfmoon.limits import FRAME_BYTES_MAX, ROUTE_QUEUES_MAX
from halfmoon.wire.bodies import ClusterInfo, KVTable, TopicList, TopicRouteData, from_json
from halfmoon.wire.codes import COMPRESSED, LZ4, ZLIB, ZSTD
from halfmoon.wire.command import Command, encode, reply_command, request_command
from halfmoon.wire.compression import decompress
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from tests.nameserver.house import House, MemoryDisk, register_fields

GROWTH_MB = 500
"""What may be taken beyond the start: a million queues of a client (200), one reply as it is read (150), an opened bomb (130), and
a name server's tables with its saved values."""

TOPICS = [f"t{number}" for number in range(64)]
NUMBERS = [0, 1, 4, 16, 1024, 60_000, ROUTE_QUEUES_MAX, ROUTE_QUEUES_MAX + 1, 2**31 - 1, 2**31, 2**63, -1, -(2**31)]
COUNTS = [0, 1, 2, 2, 3, 40, 600, 999, 1001]
LENGTHS = [0, 1, 20, 20, 20, 255, 256, 70_000, 900_000]


def name(random: Random) -> str:
    """Return a name as nobody has one."""
    return random.choice(["b", "é", '"', "\\", "\u0001", "%"]) * random.choice(LENGTHS)


def route_body(random: Random) -> bytes:
    """Return what a hostile name server answers for a topic's route."""
    kind = random.random()
    if kind < 0.1:
        return random.randbytes(random.randrange(2000))
    if kind < 0.15:
        return b"[" * 50_000
    if kind < 0.2:
        return b'{"brokerDatas":[' + b"{}," * 400_000 + b"{}]}"
    brokers, number = [f"b{i}" for i in range(random.choice(COUNTS))], random.choice(NUMBERS)
    if random.random() < 0.3 and brokers:
        brokers[0] = name(random)
    route: dict[str, Any] = {
        "brokerDatas": [{"cluster": "c", "brokerName": each, "brokerAddrs": {0: f"{each[:9]}:1"}} for each in brokers],
        "queueDatas": [{"brokerName": each, "readQueueNums": number, "writeQueueNums": number, "perm": 6} for each in brokers],
    }
    if random.random() < 0.2:
        route["orderTopicConf"] = ";".join(f"b{i}:{random.choice(NUMBERS)}" for i in range(random.choice([1, 3, 14_000])))
    text = json.dumps(route, ensure_ascii=False).encode()
    return text[: random.randrange(len(text))] if random.random() < 0.1 else text


def answered(operation: Op[Any], answer: Callable[[Any], Command]) -> Any:
    """Run an operation; its requests are answered at once."""
    value: Any = None
    while True:
        try:
            effect = operation.send(value)
        except StopIteration as stop:
            return stop.value
        if isinstance(effect, Call):
            value = answer(effect.request)
        elif isinstance(effect, Gather):
            value = [answered(each, answer) for each in effect.operations]
        else:
            assert isinstance(effect, SteadyTime), effect
            value = 0


class Client:
    """A client of name servers that answer anything."""

    def __init__(self, random: Random) -> None:
        self.random, self.table = random, RouteTable(NameServers(["ns:1"], random), random)
        for topic in TOPICS[:8]:
            self.table.register(topic)
        self.refused = self.learnt = 0

    def turn(self) -> None:
        """Ask for a route, or read a list."""
        topic = self.random.choice(TOPICS)
        try:
            answered(self.table.refresh(topic), self._answer)
            if self.random.random() < 0.02:
                kind = self.random.choice([TopicList, ClusterInfo, KVTable])
                from_json(kind, b'{"topicList":[' + b'"",' * 999_000 + b'""]}')
            self.learnt += 1
        except HalfmoonError:
            self.refused += 1
        if (route := self.table.known(topic)) is not None:
            assert len(read_queues(topic, route)) <= ROUTE_QUEUES_MAX
        known = [self.table.known(each) for each in TOPICS]
        assert sum(route.queue_count for route in known if route is not None) <= QUEUES_MAX

    def _answer(self, request: Any) -> Command:
        command = request_command(request)
        if isinstance(request, GetRouteinfoByTopic):
            return reply_command(command, self.random.choice([0] * 9 + [17]), body=route_body(self.random))
        return reply_command(command, self.random.choice([0, 17]))


class Servers:
    """A name server whose brokers send anything."""

    def __init__(self, random: Random) -> None:
        self.random, self.disk = random, MemoryDisk()
        self.house = House(self.disk)
        self.bomb = b"".join(bomb(ZLIB))

    def turn(self) -> None:
        """Register a broker, or store a value; now and then look at what a client would be answered."""
        random, house = self.random, self.house
        peer = house.connect()
        if random.random() < 0.4:
            value = random.choice(["x", "\u0001", "é"]) * random.choice([1, 60_000, 65_000])
            fields = {"namespace": name(random)[:1100] or "n", "key": f"k{random.randrange(5000)}", "value": value}
            house.ask(random.choice([100, 100, 100, 102]), fields, peer=peer)
        else:
            fields = register_fields(f"b{random.randrange(1200)}", random.choice([0, 0, 1, random.randrange(2000)]))
            if random.random() < 0.2:
                fields[random.choice(["brokerName", "clusterName", "brokerAddr", "haServerAddr"])] = name(random)[:250_000]
            house.feed(peer, encode(Command(code=103, opaque=1, fields=fields, body=self._body(), version=409)))
            house.taken(peer)
        if random.random() < 0.1:
            self.look()

    def _body(self) -> bytes:
        if self.random.random() < 0.05:
            return self.bomb
        number = self.random.choice(NUMBERS)
        names = {self.random.choice(TOPICS) if self.random.random() < 0.7 else name(self.random) for _ in range(3)}
        topics = {each: {"topicName": each, "readQueueNums": number, "writeQueueNums": number, "perm": 6} for each in names}
        wrapper = {"dataVersion": {"counter": self.random.randrange(99)}, "topicConfigTable": topics}
        return json.dumps({"topicConfigSerializeWrapper": wrapper}).encode()

    def look(self) -> None:
        """What the name server answers is what a client takes, and fits into a frame."""
        for topic in self.random.sample(TOPICS, 4):
            if (reply := self.house.ask(105, {"topic": topic})).code == 0:
                from_json(TopicRouteData, reply.body)
        for code, kind in ((206, TopicList), (106, ClusterInfo)):
            reply = self.house.ask(code)
            from_json(kind, reply.body)
            assert len(reply.body) < FRAME_BYTES_MAX
        assert len(self.disk.files.get("kvConfig.json", b"")) < 6 * 1024 * 1024


def bomb(kind: int, size_mb: int = 300) -> Iterator[bytes]:
    """Yield the pieces of a small body that inflates to very much."""
    chunk = b" " * (1024 * 1024)
    if kind == ZLIB:
        stream = zlib.compressobj(9)
        for _ in range(size_mb):
            yield stream.compress(chunk)
        yield stream.flush()
    elif kind == LZ4:
        lz4 = __import__("lz4.frame").frame.LZ4FrameCompressor()
        yield lz4.begin()
        for _ in range(size_mb):
            yield lz4.compress(chunk)
        yield lz4.flush()
    else:
        zstd = __import__("zstandard").ZstdCompressor().compressobj()
        for _ in range(size_mb):
            yield zstd.compress(chunk)
        yield zstd.flush()


def open_bombs() -> None:
    """Decompress bodies of messages that inflate to 300 MB each; each is refused."""
    for kind in (ZLIB, LZ4, ZSTD):
        try:
            decompress(b"".join(bomb(kind)), COMPRESSED | kind)
        except PeerError:
            continue
        raise AssertionError(f"a bomb of kind {kind:#x} was opened")


def peak_mb() -> int:
    """Return the most memory that this process had."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    began, random = peak_mb(), Random(asked.seed)
    size = int(Path("/proc/self/status").read_text().partition("VmSize:")[2].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (size + 2 * GROWTH_MB * 1024**2,) * 2)  # before the machine suffers
    open_bombs()
    client, servers = Client(random), Servers(random)
    for _ in range(asked.rounds):
        client.turn()
        servers.turn()
    servers.look()
    grown = peak_mb() - began
    print(json.dumps({"rounds": asked.rounds, "learnt": client.learnt, "refused": client.refused, "grown_mb": grown}))
    assert grown <= GROWTH_MB, f"{grown} MB more than at the start"
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
