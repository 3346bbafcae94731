"""`MemoryTransport`: one publisher's way to a `halfmoon.testing.bus.MemoryBus`; it stands for a process, and can die as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from halfmoon.errors import ConnectionLost, NotRunning
from halfmoon.events.publishing.transport import Answer, Prepared, SendCallback
from halfmoon.model import LocalTransactionState, Message, SendResult, StoredMessage
from halfmoon.testing.world import WorldTransactionProducer

T = TypeVar("T")

BROKER_NAME = "broker-a"


class Store(Protocol):
    """A bus as its transports know it."""

    asked: Counter[str]
    """Checks that members were asked, by id."""

    @property
    def now_ms(self) -> int:
        """The time."""

    def transaction_producer(self, check: Answer, group: str = ..., **settings: Any) -> WorldTransactionProducer:
        """Return a new transactional producer."""

    def end(self, producer: WorldTransactionProducer) -> None:
        """End the process of a producer."""

    def store(self, member: MemoryTransport, message: Message, phase: str, send: Callable[[], T]) -> T:
        """Have a message stored by ``send()``."""

    def arrives(self) -> bool:
        """Return whether a decision arrives."""


class MemoryTransport:
    """A `Transport` on a bus; made by `MemoryBus.transport`. Nothing waits, so the time-outs are never reached."""

    def __init__(self, bus: Store, group: str) -> None:
        self.group = group
        self.dead = False
        self.settle: Callable[[], None] = lambda: None
        self._bus = bus
        self._closed = False
        self._producer: WorldTransactionProducer | None = None

    def start(self, answer: Answer) -> None:
        """Become one whom the bus may ask. Raises NotRunning once closed."""
        self._check_alive()
        if self._producer is None:
            own = {"retries_max": 0, "retries_async_max": 0, "default_topic_queue_count": 1, "spans": False}

            def counted(message: StoredMessage) -> LocalTransactionState:
                self._bus.asked[message.msg_id] += 1
                return answer(message)

            self._producer = self._bus.transaction_producer(counted, self.group, **own)

    def settled_by(self, settle: Callable[[], None]) -> bool:
        """Return True: the bus settles before it shows anything, so that tests see what a broker has moments later."""
        self.settle = settle
        return True

    def close(self, flush_ms: int) -> None:
        """Leave the bus: no more publishing, no more answers."""
        self._closed = True
        self.end()

    def end(self) -> None:
        """End the process."""
        if self._producer is not None:
            self._bus.end(self._producer)

    @property
    def answers(self) -> bool:
        """Whether it can be asked."""
        return self._producer is not None and not self._closed and not self.dead

    def _check_alive(self) -> None:
        if self.dead:
            raise ConnectionLost("this publisher was killed by the test", BROKER_NAME)
        if self._closed:
            raise NotRunning("the transport is closed")

    def _open(self) -> WorldTransactionProducer:
        self._check_alive()
        if self._producer is None:
            raise NotRunning("the transport is not started: call start()")
        return self._producer

    # ------------------------------------------------------------ messages

    def new_id(self) -> str:
        """Return a new message id. Raises NotRunning unless it was started and is not closed."""
        return self._open().client.ids.next(self._bus.now_ms)

    def send(self, message: Message, *, attempt: int, timeout_ms: int) -> SendResult:
        """Send a message that consumers see at the bus's next `deliver`."""
        producer, message = self._open(), msgspec.structs.replace(message, attempt=attempt)
        return self._bus.store(self, message, "send", lambda: producer.send(message))

    async def send_async(self, message: Message, *, attempt: int, timeout_ms: int) -> SendResult:
        """As `send`."""
        return self.send(message, attempt=attempt, timeout_ms=timeout_ms)

    def prepare(self, message: Message, *, attempt: int, timeout_ms: int, check_after_s: int | None) -> Prepared:
        """Store a half message."""
        producer, message = self._open(), msgspec.structs.replace(message, attempt=attempt)

        def stored() -> Prepared:
            half = producer.prepare(message, check_after_s=check_after_s)
            return Prepared(half.result.msg_id, half.result, half)

        return self._bus.store(self, message, "prepare", stored)

    async def prepare_async(self, message: Message, *, attempt: int, timeout_ms: int, check_after_s: int | None) -> Prepared:
        """As `prepare`."""
        return self.prepare(message, attempt=attempt, timeout_ms=timeout_ms, check_after_s=check_after_s)

    def prepare_many(
        self, messages: Sequence[Message], *, timeout_ms: int, check_after_s: int | None
    ) -> list[Prepared | Exception]:
        """Store half messages."""
        return [
            _outcome(self.prepare, each, attempt=each.attempt, timeout_ms=timeout_ms, check_after_s=check_after_s)
            for each in messages
        ]

    def send_many(self, messages: Sequence[Message], *, timeout_ms: int) -> list[SendResult | Exception]:
        """Send messages."""
        return [_outcome(self.send, each, attempt=each.attempt, timeout_ms=timeout_ms) for each in messages]

    def post(self, message: Message, callback: SendCallback, *, timeout_ms: int) -> None:
        """Send a message and tell how it went, before this returns."""
        (outcome,) = self.send_many([message], timeout_ms=timeout_ms)
        if isinstance(outcome, Exception):
            callback(None, outcome)
        else:
            callback(outcome, None)

    def decide(self, prepared: Prepared, *, commit: bool) -> None:
        """Decide on a half message; of a dead publisher nothing arrives."""
        if self._producer is None or self.dead or self._closed or not self._bus.arrives():
            self.leave(prepared)
        else:
            self._producer.decide(prepared.server_data, commit=commit)

    def leave(self, prepared: Prepared) -> None:
        """Leave a half message to checks."""
        if self._producer is not None:
            self._producer.leave(prepared.server_data)


def _outcome(call: Callable[..., T], message: Message, **options: Any) -> T | Exception:
    try:
        return call(message, **options)
    except Exception as exc:
        return exc
