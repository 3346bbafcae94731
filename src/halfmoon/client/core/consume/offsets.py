"""A group's offsets: stored at the brokers for clustering, in a local file for broadcasting.

Both keep a table in memory that consumption updates and a periodic operation persists. The file itself is a port that the
runtime gives (`OffsetFile`); nothing here opens it.

An offset speaks of one topic, and a topic that is deleted and made again is another: brokers of Halfmoon tell when a topic was
made, and that birth goes with every offset that comes or goes. Apache's brokers tell none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Protocol

from halfmoon.client.core.ask import call, tell
from halfmoon.client.core.route_table import RouteTable
from halfmoon.effects import Op, Signal, run, wait
from halfmoon.errors import HalfmoonError, NetworkError, broker_error
from halfmoon.model import MessageQueue
from halfmoon.shown.names import queue_name
from halfmoon.wire.bodies import LocalOffsetTable, from_json, to_json
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset, TopicBirth, UpdateConsumerOffset

UNKNOWN = -1
"""The group has no offset in the queue yet; or the birth of its topic is not known."""

log = logging.getLogger("halfmoon.client")


class OffsetFile(Protocol):
    """A small file that is replaced whole."""

    def load(self) -> bytes | None:
        """Return its content, that of its backup when it is missing or damaged, or None. Raises PeerError: both are damaged."""

    def save(self, data: bytes) -> None:
        """Replace its content; the old one is kept as a backup. May wait."""


class OffsetTable:
    """Offsets in memory, and of which topic they are; progress only goes forward unless it is set on purpose."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self._births: dict[MessageQueue, int] = {}

    def birth(self, queue: MessageQueue) -> int:
        """Return when the topic was made of which the offsets here speak, ms; 0: its broker does not know; -1: it was not told."""
        return self._births.get(queue, UNKNOWN)

    def learn_birth(self, queue: MessageQueue, birth_ms: int | None) -> None:
        """Note when a broker says that a topic was made. A known birth stays, and a broker with another one refuses it."""
        if birth_ms is not None and birth_ms >= 0:
            self._births.setdefault(queue, birth_ms)

    def update(self, queue: MessageQueue, offset: int, *, only_forward: bool = True) -> None:
        """Note progress; an older offset is ignored unless ``only_forward`` is False (a reset)."""
        if not only_forward or offset > self.offsets.get(queue, UNKNOWN):
            self.offsets[queue] = offset

    def memory(self, queue: MessageQueue) -> int:
        """Return what is known here, or -1."""
        return self.offsets.get(queue, UNKNOWN)

    def forget(self, queue: MessageQueue) -> None:
        """Forget a queue that is not ours any more, or another topic's."""
        self.offsets.pop(queue, None)
        self._births.pop(queue, None)


class RemoteOffsets(OffsetTable):
    """Progress kept by the brokers. Follows RemoteBrokerOffsetStore (RocketMQ 4.9.8)."""

    def __init__(self, group: str, routes: RouteTable, timeout_ms: int = 3_000) -> None:
        super().__init__()
        self._group, self._routes, self._timeout_ms = group, routes, timeout_ms

    def load(self) -> Op[None]:
        """Nothing to load: brokers are asked queue by queue."""
        yield from ()

    def fetch(self, queue: MessageQueue) -> Op[int]:
        """Return the stored offset, or -1 when the group has none. Raises NetworkError, BrokerError."""
        offset, birth_ms = yield from stored_offset(self._routes, self._group, queue, self._timeout_ms)
        self.learn_birth(queue, birth_ms)
        if offset != UNKNOWN:
            self.offsets[queue] = offset
        return offset

    def persist(self, queues: Collection[MessageQueue]) -> Op[None]:
        """Send the offsets of these queues to the brokers, one-way; forget those of others. Failures are logged."""
        for queue in [queue for queue in self.offsets if queue not in queues]:
            del self.offsets[queue]  # its birth stays: one that is being gained was told it just now
        for queue in sorted(queues):
            if (offset := self.offsets.get(queue)) is not None:
                yield from self.persist_one(queue, offset)

    def persist_one(self, queue: MessageQueue, offset: int | None = None) -> Op[None]:
        """Send the offset of one queue to the broker, one-way. Failures are logged; the next round sends it again."""
        offset = self.offsets.get(queue) if offset is None else offset
        if offset is None:
            return
        try:
            birth_ms = self._births.get(queue)
            request = UpdateConsumerOffset(
                consumer_group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                commit_offset=offset,
                topic_birth_ms=birth_ms,
            )
            yield from tell(_address(self._routes, queue), request, b"", self._timeout_ms)
        except HalfmoonError as exc:
            log.warning("offset not stored: group=%s queue=%s reason=%s", self._group, queue_name(queue), exc)


def same_topic(known_ms: int, told_ms: int) -> bool:
    """Whether two births may be one topic's: one that is not known now may be any, and one that is known now was always known."""
    return known_ms == told_ms or known_ms < 0 or told_ms <= 0


def stored_offset(routes: RouteTable, group: str, queue: MessageQueue, timeout_ms: int) -> Op[tuple[int, int | None]]:
    """Ask a broker for a group's offset in a queue, -1 for none, and when the topic was made (None: it tells no births).

    Raises NetworkError, BrokerError.
    """
    address = _address(routes, queue)
    request = QueryConsumerOffset(consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, topic_birth_ms=UNKNOWN)
    reply = yield from call(address, request, b"", timeout_ms)
    if reply.code not in (0, 22):
        raise broker_error(reply.code, reply.remark, address)
    offset = UNKNOWN if reply.code == 22 else reply.header(OffsetReply).offset
    return offset, reply.header(TopicBirth).topic_birth_ms


def _address(routes: RouteTable, queue: MessageQueue) -> str:
    reader = routes.reader(queue.broker_name)
    if reader is None:
        raise NetworkError(f"The broker[{queue.broker_name}] not exist")
    return reader[0]


class LocalOffsets(OffsetTable):
    """Progress kept in a file of this machine. Follows LocalFileOffsetStore (RocketMQ 4.9.8), in its format.

    Topics have their names on the wire.
    """

    def __init__(self, file: OffsetFile) -> None:
        super().__init__()
        self._file = file
        self._saved: tuple[dict[MessageQueue, int], dict[MessageQueue, int]] = ({}, {})
        self._saving = False
        self._free = Signal()

    def load(self) -> Op[None]:
        """Read the file. Raises PeerError when it does not parse: to begin anew in silence would repeat or lose messages."""
        data = yield from run(self._file.load)
        if data:
            table = offsets_of(data)
            self.offsets.update(table.offset_table)
            self._births.update(table.topic_births or {})
            self._saved = self._snapshot()

    def fetch(self, queue: MessageQueue) -> Op[int]:
        """Return the offset read from the file or noted since, or -1."""
        yield from ()
        return self.memory(queue)

    def persist(self, queues: Collection[MessageQueue]) -> Op[None]:
        """Write the file when something changed. Failures are logged. Offsets of queues that are not ours now are kept.

        One after the other: an older table never takes the place of a newer one.
        """
        while self._saving:
            yield from wait(self._free)
        snapshot = self._snapshot()
        if snapshot == self._saved:
            return
        save: Callable[[bytes], None] = self._file.save
        self._saving = True
        try:
            yield from run(save, offsets_json(*snapshot))
            self._saved = snapshot
        except OSError as exc:
            log.warning("offsets not saved: reason=%s", exc)
        finally:
            self._saving = False
            self._free.fire()

    def persist_one(self, queue: MessageQueue, offset: int | None = None) -> Op[None]:
        """Write the file when something changed."""
        yield from self.persist(())

    def _snapshot(self) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
        return dict(self.offsets), {queue: birth_ms for queue, birth_ms in self._births.items() if queue in self.offsets}


def offsets_of(data: bytes) -> LocalOffsetTable:
    """Return what `offsets_json` or a Java client wrote. Raises PeerError."""
    return from_json(LocalOffsetTable, data)


def offsets_json(offsets: dict[MessageQueue, int], births: dict[MessageQueue, int] | None = None) -> bytes:
    """Return the offsets of queues as ``{"offsetTable":{{queue}:offset}}``, with ``topicBirths`` like it where some are known."""
    return to_json(LocalOffsetTable(offset_table=offsets, topic_births=births or None))
