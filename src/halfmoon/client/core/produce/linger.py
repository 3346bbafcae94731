"""Sends that wait a moment for others and leave with them as one batch, where the producer's ``linger_ms`` allows it.

Whoever sends gets the result of their own message, or the error that all of the batch got. Never joins what may not share a batch:
messages of other topics, with other promises or other targets, delayed or half messages, repeats, bodies that are compressed.
"""

from __future__ import annotations

from typing import Any, Unpack

from halfmoon.client.core.names import RETRY_PREFIX, wrap
from halfmoon.client.core.produce.attempts import FirstAttempt
from halfmoon.client.core.produce.outgoing import Outgoing
from halfmoon.client.core.produce.send import Chosen, Sender
from halfmoon.client.core.route_table import RouteTable
from halfmoon.client.settings import ProducerSettings
from halfmoon.effects import Op, Signal, now, spawn, steady, wait
from halfmoon.errors import NotRunning
from halfmoon.hot import ITEM_BYTES_MIN
from halfmoon.model import Message, MessageQueue, SendResult
from halfmoon.wire.ids import UniqueIds
from halfmoon.wire.record import BatchItem

BATCH_BYTES_MAX = 128 * 1024
"""A batch of this size leaves at once."""

Kind = tuple[str, bool, MessageQueue | None, int, bool]
"""Common to the messages of a batch: topic, whether to wait for the store, target, budget of time, asynchronous or not."""


class LingeringBatch:
    """Messages that wait to leave together, by id, since ``begin`` (ms, steady)."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.items: dict[str, BatchItem] = {}
        self.size_bytes = 0
        self.full, self.over = Signal(), Signal()
        self.results: dict[str, SendResult] | None = None
        self.error: Exception | None = None

    def add(self, msg_id: str, item: BatchItem) -> None:
        """Take a message in."""
        self.items[msg_id] = item
        self.size_bytes += _size(item)

    def drop(self, msg_id: str) -> None:
        """Nobody waits for a message any more."""
        self.size_bytes -= _size(self.items.pop(msg_id))


class LingeringSender(Sender):
    """A sender whose messages wait for others, ``linger_ms`` at most."""

    def __init__(self, settings: ProducerSettings, routes: RouteTable, ids: UniqueIds) -> None:
        super().__init__(settings, routes, ids)
        self._open: dict[Kind, LingeringBatch] = {}
        self._all: set[LingeringBatch] = set()  # those that have left and are not answered yet, too

    def send(self, message: Message, **chosen: Unpack[Chosen]) -> Op[SendResult]:
        """Send as `Sender.send` does, with others that come within the time."""
        if self._may_share(message):
            return self._send_with_others(message, chosen, asynchronous=False)
        return super().send(message, **chosen)

    def send_async(self, message: Message, **chosen: Unpack[Chosen]) -> Op[SendResult]:
        """Send as `Sender.send_async` does, with others that come within the time."""
        if self._may_share(message):
            return self._send_with_others(message, chosen, asynchronous=True)
        return super().send_async(message, **chosen)

    def first(self, message: Message, *arguments: Any) -> FirstAttempt | None:
        """As `Sender.first`, for messages that leave alone."""
        return None if self._may_share(message) else super().first(message, *arguments)

    def flush(self) -> Op[None]:
        """Send everything now, and wait for the replies."""
        for kind, batch in list(self._open.items()):
            self._close(kind, batch)
        for batch in list(self._all):
            while batch in self._all:
                yield from wait(batch.over)

    # ------------------------------------------------------------ inside

    def _may_share(self, message: Message) -> bool:
        """Whether a message may share a batch. What is no message at all is not looked at here."""
        if not isinstance(message, Message) or not isinstance(message.topic, str):
            return False
        body = message.body
        return (
            not message.is_delayed
            and message.attempt == 1
            and isinstance(body, bytes | bytearray | memoryview)
            and len(body) < min(self.settings.compress_over_bytes, BATCH_BYTES_MAX)
            and not message.topic.startswith(RETRY_PREFIX)
        )

    def _send_with_others(self, message: Message, chosen: Chosen, *, asynchronous: bool) -> Op[SendResult]:
        """Return the result of this message, or raise what all of its batch got."""
        begin = yield from steady()
        self.check(message)
        target = yield from self.target(message, chosen.get("queue"), chosen.get("selector"), chosen.get("key"))
        msg_id, item = self.item(message, (yield from now()))
        kind = message.topic, message.wait_store, target, self.budget(chosen.get("timeout_ms")), asynchronous
        batch = self._open.get(kind)
        if batch is not None and (msg_id in batch.items or batch.size_bytes + _size(item) > self.settings.body_bytes_max):
            self._close(kind, batch)
            batch = None
        if batch is None:
            batch = self._open[kind] = LingeringBatch(begin)
            self._all.add(batch)
            yield from spawn(self._leave(kind, batch), f"linger {message.topic}")
        batch.add(msg_id, item)
        if batch.size_bytes >= BATCH_BYTES_MAX:
            self._close(kind, batch)
        try:
            while batch.results is None and batch.error is None:
                yield from wait(batch.over)
        except BaseException:
            if self._open.get(kind) is batch:
                batch.drop(msg_id)  # it has not left
            raise
        if batch.error is not None:
            raise batch.error
        assert batch.results is not None
        return batch.results[msg_id]

    def _close(self, kind: Kind, batch: LingeringBatch) -> None:
        """Close a batch: it takes no more messages, and is sent."""
        if self._open.get(kind) is batch:
            del self._open[kind]
        batch.full.fire()

    def _leave(self, kind: Kind, batch: LingeringBatch) -> Op[None]:
        """Wait for more messages, send the batch, wake all senders."""
        try:
            yield from wait(batch.full, self.settings.linger_ms)
            self._close(kind, batch)
            batch.results = (yield from self._deliver(kind, batch)) if batch.items else {}
        except Exception as exc:
            batch.error = exc
        finally:
            self._close(kind, batch)
            self._all.discard(batch)
            if batch.results is None and batch.error is None:
                batch.error = NotRunning("The producer was closed before the message left")
            batch.over.fire()

    def _deliver(self, kind: Kind, batch: LingeringBatch) -> Op[dict[str, SendResult]]:
        """Send what was gathered; return the result of each."""
        topic, wait_store, target, budget_ms, asynchronous = kind
        ids, items = list(batch.items), list(batch.items.values())
        if len(items) == 1:
            properties = items[0].properties.decode()
            outgoing = Outgoing(wrap(topic, self.settings.namespace), items[0].body, properties, ids[0], items[0].flag)
        else:
            outgoing = self.batch(topic, ids, items, wait_store=wait_store)
        if asynchronous:
            result = yield from self.deliver_async(outgoing, target, batch.begin, budget_ms)
        elif target is not None:
            result = yield from self.send_to(outgoing, target, batch.begin, budget_ms)
        else:
            result = yield from self.deliver(outgoing, batch.begin, budget_ms)
        stored = result.offset_msg_id.split(",")
        if len(stored) != len(ids):
            stored = [result.offset_msg_id] * len(ids)
        return {
            msg_id: SendResult(
                result.status, msg_id, offset_msg_id, result.queue, result.queue_offset + i, result.transaction_id,
                result.region_id, result.trace_on, result.recall_handle,
            )
            for i, (msg_id, offset_msg_id) in enumerate(zip(ids, stored, strict=True))
        }  # fmt: skip


def _size(item: BatchItem) -> int:
    return ITEM_BYTES_MIN + len(item.body) + len(item.properties)
