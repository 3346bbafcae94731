"""Where a group's progress is kept: at the brokers for clustering, in a local file for broadcasting.

Both keep a table in memory that consumption updates and a periodic operation persists. The file itself is a port that the
shell gives (`OffsetFile`); nothing here opens it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Protocol

from halfmoon.client.core.ask import call, tell
from halfmoon.client.core.route import RouteTable
from halfmoon.effects import Op, run
from halfmoon.errors import HalfmoonError, NetworkError, broker_error
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import LocalOffsetTable, from_json, to_json
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset, UpdateConsumerOffset

UNKNOWN = -1
"""The group has no progress in the queue yet."""

log = logging.getLogger("halfmoon.client")


class OffsetFile(Protocol):
    """A small file that is replaced whole."""

    def load(self) -> bytes | None:
        """Return its content, that of its backup when it is missing, or None."""

    def save(self, data: bytes) -> None:
        """Replace its content; the old one is kept as a backup. May wait."""


class OffsetTable:
    """Offsets in memory; progress only goes forward unless it is set on purpose."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}

    def update(self, queue: MessageQueue, offset: int, *, only_forward: bool = True) -> None:
        """Note progress; an older offset is ignored unless ``only_forward`` is False (a reset)."""
        if not only_forward or offset > self.offsets.get(queue, UNKNOWN):
            self.offsets[queue] = offset

    def memory(self, queue: MessageQueue) -> int:
        """Return what is known here, or -1."""
        return self.offsets.get(queue, UNKNOWN)

    def forget(self, queue: MessageQueue) -> None:
        """The queue is not ours any more."""
        self.offsets.pop(queue, None)


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
        address = self._address(queue)
        request = QueryConsumerOffset(consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id)
        reply = yield from call(address, request, b"", self._timeout_ms)
        if reply.code == 22:
            return UNKNOWN
        if reply.code != 0:
            raise broker_error(reply.code, reply.remark, address)
        offset = reply.header(OffsetReply).offset
        self.offsets[queue] = offset
        return offset

    def persist(self, queues: Collection[MessageQueue]) -> Op[None]:
        """Tell the brokers, one-way, the offsets of these queues; forget those of others. Failures are logged."""
        for queue in [queue for queue in self.offsets if queue not in queues]:
            self.forget(queue)
        for queue in sorted(queues):
            if (offset := self.offsets.get(queue)) is not None:
                yield from self.persist_one(queue, offset)

    def persist_one(self, queue: MessageQueue, offset: int | None = None) -> Op[None]:
        """Tell the broker, one-way, the offset of one queue. Failures are logged; the next round tells again."""
        offset = self.offsets.get(queue) if offset is None else offset
        if offset is None:
            return
        try:
            request = UpdateConsumerOffset(
                consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
            )
            yield from tell(self._address(queue), request, b"", self._timeout_ms)
        except HalfmoonError as exc:
            log.warning("offset not stored: group=%s queue=%s reason=%s", self._group, queue, exc)

    def _address(self, queue: MessageQueue) -> str:
        found = self._routes.reader(queue.broker_name)
        if found is None:
            raise NetworkError(f"The broker[{queue.broker_name}] not exist")
        return found[0]


class LocalOffsets(OffsetTable):
    """Progress kept in a file of this machine. Follows LocalFileOffsetStore (RocketMQ 4.9.8), in its format; topics in it are
    called as on the wire."""

    def __init__(self, file: OffsetFile) -> None:
        super().__init__()
        self._file = file
        self._saved: dict[MessageQueue, int] = {}

    def load(self) -> Op[None]:
        """Read the file. Raises PeerError when it does not parse: to begin anew in silence would repeat or lose messages."""
        data = yield from run(self._file.load)
        if data:
            self.offsets.update(offsets_of(data))
            self._saved = dict(self.offsets)

    def fetch(self, queue: MessageQueue) -> Op[int]:
        """Return the offset read from the file or noted since, or -1."""
        yield from ()
        return self.memory(queue)

    def persist(self, queues: Collection[MessageQueue]) -> Op[None]:
        """Write the file when something changed. Failures are logged. Offsets of queues that are not ours now are kept."""
        if self.offsets == self._saved:
            return
        snapshot = dict(self.offsets)
        save: Callable[[bytes], None] = self._file.save
        try:
            yield from run(save, offsets_json(snapshot))
            self._saved = snapshot
        except OSError as exc:
            log.warning("offsets not saved: reason=%s", exc)

    def persist_one(self, queue: MessageQueue, offset: int | None = None) -> Op[None]:
        """Write the file when something changed."""
        yield from self.persist(())


def offsets_json(offsets: dict[MessageQueue, int]) -> bytes:
    """Return the offsets of queues as ``{"offsetTable":{{queue}:offset}}``."""
    return to_json(LocalOffsetTable(offset_table=offsets))


def offsets_of(data: bytes) -> dict[MessageQueue, int]:
    """Return the offsets of queues from their JSON, raw keys or quoted ones."""
    return dict(from_json(LocalOffsetTable, data).offset_table)
