"""`MemoryTransport`: one publisher's way to a `MemoryBus`; it stands for a process, and can die as one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar, Unpack

from halfmoon.client.constructors.options import TransactionOptions
from halfmoon.client.core.produce.transaction import OpenHalf
from halfmoon.effects import Op, Sleep
from halfmoon.errors import ConnectionLost, NotRunning
from halfmoon.events.publishing.transport import Answer, SendCallback, Wait
from halfmoon.model import LocalTransactionState, Message, SendResult, StoredMessage
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.drivers.blocking_driver import BlockingDriver
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

    def transaction_producer(
        self, check: Answer, group: str = ..., **settings: Unpack[TransactionOptions]
    ) -> WorldTransactionProducer:
        """Return a new transactional producer."""

    def end(self, producer: WorldTransactionProducer) -> None:
        """End the process of a producer."""

    def store(self, member: MemoryTransport, message: Message, phase: str, send: Callable[[], T]) -> T:
        """Have a message stored by ``send()``."""

    def arrives(self) -> bool:
        """Return whether a decision arrives."""


class NoLoop:
    """In place of the event loop of a `BlockingDriver`: any thread and any process may drive, and nothing is awaited."""

    def check_caller(self) -> None:
        """Take any thread."""

    def check_process(self) -> None:
        """Take any process."""

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> NoReturn:
        """Raise AssertionError."""
        coroutine.close()
        raise AssertionError("a blocking operation awaits something")


class InMemoryDriver(BlockingDriver):
    """Driver of operations without a network, in real time. Only pauses between attempts wait."""

    _loop: Any = NoLoop()
    _clock = Clock()

    def __init__(self) -> None:
        """Make it without connections: it asks nobody."""

    def _here(self, effect: Any, *, sends: bool = True) -> Any:
        if sends and isinstance(effect, Sleep):
            return time.sleep(effect.ms / 1000)
        return super()._here(effect, sends=False)

    async def _on_loop(self, effect: Any) -> Any:
        """Pause on the running event loop. Raises AssertionError for any other effect."""
        if not isinstance(effect, Sleep):
            raise AssertionError(f"a transport in memory is asked for {effect!r}")
        await asyncio.sleep(effect.ms / 1000)

    async def _awaited(self, effect: Any) -> Any:
        return await self._on_loop(effect)


class InMemory:
    """Base of transports without a network: how they drive publishes."""

    _driver = InMemoryDriver()

    def run(self, operation: Op[T], wait: Wait | None = None) -> T:
        """Drive an operation in this thread."""
        return self._driver.run(operation, wait)

    async def run_async(self, operation: Op[T]) -> T:
        """Drive an operation on the running event loop."""
        return await self._driver.run_async(operation)


class MemoryTransport(InMemory):
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
            own = TransactionOptions(retries_max=0, retries_async_max=0, default_topic_queue_count=1, spans=False)

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

    def send(self, messages: Sequence[Message], timeout_ms: int) -> Op[Sequence[SendResult | Exception]]:
        """Send messages that consumers see at the bus's next `deliver`."""
        yield from ()
        return [self._stored("send", message) for message in messages]

    def prepare(
        self, messages: Sequence[Message], timeout_ms: int, check_after_s: int | None = None
    ) -> Op[Sequence[OpenHalf | Exception]]:
        """Store half messages."""
        yield from ()
        return [self._stored("prepare", message, check_after_s=check_after_s) for message in messages]

    def _stored(self, phase: str, message: Message, **limits: Any) -> Any:
        """Return what storing a message gives, or its error."""
        try:
            return self._bus.store(self, message, phase, partial(getattr(self._open(), phase), message, **limits))
        except Exception as exc:
            return exc

    def post(self, message: Message, callback: SendCallback, *, timeout_ms: int) -> None:
        """Send a message and tell how it went, before this returns."""
        outcome = self._stored("send", message)
        if isinstance(outcome, Exception):
            callback(None, outcome)
        else:
            callback(outcome, None)

    def decide(self, half: OpenHalf, *, commit: bool) -> None:
        """Decide on a half message; of a dead publisher nothing arrives."""
        if self._producer is None or self.dead or self._closed or not self._bus.arrives():
            self.leave(half)
        else:
            self._producer.decide(half, commit=commit)

    def leave(self, half: OpenHalf) -> None:
        """Leave a half message to checks."""
        if self._producer is not None:
            self._producer.leave(half)
