"""Brokers and disks with a fault planted into them. Each breaks one promise, now and then, as a real mistake would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from halfmoon.broker.broker import Broker
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import CoreEffect, Write
from halfmoon.ports import Buffer
from halfmoon.store.journal import Kind, Row
from halfmoon.store.legacy import read_journal
from halfmoon.testing.disk import SimDisk, SimFile
from halfmoon.wire.command import Command, decode, encode, reply_command
from halfmoon.wire.frame import Frame, Inbox
from halfmoon.wire.headers.send import SendMessageReply
from tests.simulation.faulty import faulty_broker
from tests.store.driving import edit_journal

SENDS = (10, 310, 320)
PULL, QUERY_OFFSET = 11, 14


class Tampered:
    """A broker whose replies are tampered with. ``tamper(code, reply)`` may change the reply to a request of that code."""

    def __init__(self, broker: Any, tamper: Callable[[int, Command], None]) -> None:
        self._broker, self._tamper = broker, tamper
        self._inboxes: dict[int, Inbox] = {}
        self._asked: dict[tuple[int, int], int] = {}
        self.store = broker.store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def connected(self, peer: int, remote: str, now: int) -> None:
        self._inboxes[peer] = Inbox()
        self._broker.connected(peer, remote, now)

    def feed(self, peer: int, data: bytes) -> None:
        inbox = self._inboxes[peer]
        inbox.feed(data)
        for frame in inbox.frames():
            command = _decoded(frame)
            self._asked[peer, command.opaque] = command.code
        self._broker.feed(peer, data)

    def effects(self) -> list[CoreEffect]:
        return [self._changed(effect) if isinstance(effect, Write) else effect for effect in self._broker.effects()]

    def _changed(self, write: Write) -> Write:
        inbox = Inbox()
        inbox.feed(b"".join(bytes(chunk) for chunk in write.chunks))
        pieces = []
        for frame in inbox.frames():
            command = _decoded(frame)
            code = self._asked.pop((write.peer, command.opaque), 0)
            if command.is_response and command.code == 0:
                self._tamper(code, command)
            pieces.append(encode(command))
        return Write(write.peer, pieces)


def _decoded(frame: Frame) -> Command:
    return decode(frame.header, frame.body, frame.serialization)


def tampered(tamper: Callable[[Random], Callable[[int, Command], None]]) -> Callable[..., Any]:
    """Return what builds a broker whose replies are changed by ``tamper(chance)``."""

    def make(*arguments: Any) -> Any:
        return Tampered(Broker(*arguments), tamper(Random(1)))

    return make


# ---------------------------------------------------------------- replies


def wrong_offsets(by: int) -> Callable[[Random], Callable[[int, Command], None]]:
    """Answer some sends with an offset that is not theirs."""

    def begin(chance: Random) -> Callable[[int, Command], None]:
        def tamper(code: int, reply: Command) -> None:
            if code in SENDS and chance.random() < 0.2:
                reply.fields["queueOffset"] = str(max(0, int(reply.fields["queueOffset"]) + by))

        return tamper

    return begin


def changing_records(chance: Random) -> Callable[[int, Command], None]:
    """Give a record another time of birth, now and then."""

    def tamper(code: int, reply: Command) -> None:
        if code == PULL and len(reply.body) > 48 and chance.random() < 0.3:
            body = bytearray(reply.body)
            body[47] ^= 1
            reply.body = bytes(body)

    return tamper


def skipping_records(chance: Random) -> Callable[[int, Command], None]:
    """Leave out the first record of a pull that found several."""

    def tamper(code: int, reply: Command) -> None:
        size = int.from_bytes(reply.body[:4], "big")
        if code == PULL and len(reply.body) > size:
            reply.body = bytes(reply.body[size:])

    return tamper


def offsets_beyond_the_end(chance: Random) -> Callable[[int, Command], None]:
    """Answer a query of a group's offset with more than the queue holds."""

    def tamper(code: int, reply: Command) -> None:
        if code == QUERY_OFFSET:
            reply.fields["offset"] = str(int(reply.fields["offset"]) + 100_000)

    return tamper


# ---------------------------------------------------------------- brokers


class Forgetful(Tampered):
    """Answers some sends itself and never stores them."""

    def __init__(self, broker: Any) -> None:
        super().__init__(broker, lambda code, reply: None)
        self._chance = Random(1)
        self._own: list[CoreEffect] = []

    def feed(self, peer: int, data: bytes) -> None:
        inbox = self._inboxes[peer]
        inbox.feed(data)
        for frame in inbox.frames():
            command = _decoded(frame)
            if command.code in SENDS and not command.is_oneway and self._chance.random() < 0.02:
                queue_id = int(command.fields.get("e") or command.fields["queueId"])
                header = SendMessageReply(msg_id="0" * 32, queue_id=queue_id, queue_offset=50_000 + self._chance.randrange(10**6))
                self._own.append(Write(peer, [encode(reply_command(command, header=header))]))
            else:
                self._broker.feed(peer, encode(command))

    def effects(self) -> list[CoreEffect]:
        own, self._own = self._own, []
        return own + list(self._broker.effects())


def forgetful(*arguments: Any) -> Any:
    """A broker that acknowledges before, and instead of, writing."""
    return Forgetful(Broker(*arguments))


@faulty_broker
def hasty(broker: Any) -> None:
    """A broker that answers with sync flush before the sync."""
    broker.sends.acknowledge = lambda stored: broker.sends.replies.answer(stored)  # type: ignore[method-assign]


@faulty_broker
def loose(broker: Any) -> None:
    """A broker that lets consumers read with sync flush before the sync."""
    for each in (broker.store._appending, broker.pending_replies, broker.sends):
        each._holds_back = False
    broker.store.kept.holds_back = False


@faulty_broker
def stubborn(broker: Any) -> None:
    """A broker that goes on after a failed sync as if nothing had happened, as the original does."""
    broker.store._flush = broker.store.kept._flush = _Deaf(broker.store._flush)  # type: ignore[assignment]


def silent(settings: BrokerSettings, *arguments: Any) -> Any:
    """A broker that registers with no name server."""
    return Broker(replace(settings, nameserver=""), *arguments)


class _Deaf:
    """A flush that never learns of an error."""

    def __init__(self, flush: Any) -> None:
        object.__setattr__(self, "_flush", flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flush, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._flush, name, value)

    def sync_log(self, done: Any, *, inline: bool) -> Any:
        work = self._flush.sync_log(done, inline=inline)
        if work is not None:
            finish = work.done
            work.done = lambda outcome, now: finish(None if isinstance(outcome, Exception) else outcome, now)
        return work


# ---------------------------------------------------------------- disks


class FaultyDisk:
    """A disk with one fault; everything else is `SimDisk`'s."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def create(self, path: str, size: int) -> Any:
        return self.faulty(self._disk.create(path, size))

    def open(self, path: str) -> Any:
        return self.faulty(self._disk.open(path))

    def faulty(self, file: SimFile) -> Any:
        return file


class FaultyFile:
    """A file with one fault."""

    def __init__(self, file: SimFile) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class LyingDisk(FaultyDisk):
    """Says that the log is synced, and does not sync it."""

    class _File(FaultyFile):
        def sync(self) -> None:
            """Do nothing."""

    def faulty(self, file: SimFile) -> Any:
        return self._File(file) if file.path.startswith("commitlog/") else file


class BadIndexDisk(FaultyDisk):
    """Changes the last byte of some writes to consume queues: a wrong tag hash."""

    class _File(FaultyFile):
        def write(self, at: int, data: Buffer) -> None:
            changed = bytearray(data)
            if len(data) == 20 and at % 200 == 0:
                changed[-1] ^= 1
            self._file.write(at, changed)

    def faulty(self, file: SimFile) -> Any:
        return self._File(file) if file.path.startswith("consumequeue/") else file


class BadKeysDisk(FaultyDisk):
    """Loses some small writes to key index files."""

    class _File(FaultyFile):
        def write(self, at: int, data: Buffer) -> None:
            if at % 60 != 0:
                self._file.write(at, data)

    def faulty(self, file: SimFile) -> Any:
        return self._File(file) if file.path.startswith("index/") else file


class ForgettingDisk(FaultyDisk):
    """Never saves consumers' offsets."""

    def save(self, path: str, data: bytes, *, keep_previous: bool = True, private: bool = False) -> None:
        if "consumerOffset" not in path:
            self._disk.save(path, data, keep_previous=keep_previous, private=private)


class UnreservedDisk(FaultyDisk):
    """Loses the rows that keep queue offsets from being given again after a loss of power, at each start."""

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk)
        rows = read_journal(disk).rows(Kind.RESERVATION)
        edit_journal(disk, *(Row(Kind.RESERVATION, key, None) for key, _ in rows))
