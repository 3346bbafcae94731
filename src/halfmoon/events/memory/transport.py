"""One publisher's way to a `MemoryBus`: a `Transport` that stands for a process, and can die as one."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from halfmoon.errors import ConnectionLost, NotRunning
from halfmoon.events.memory.broker import BROKER_NAME, MemoryBroker
from halfmoon.events.memory.records import Record, own_copy
from halfmoon.events.publishing.transport import Answer, Prepared, SendCallback
from halfmoon.model import LocalTransactionState, Message, SendResult

T = TypeVar("T")

OPEN_MAX = 100_000


class MemoryTransport:
    """A `Transport` on a bus; made by `MemoryBus.transport`. Nothing waits, so the time-outs are never reached."""

    def __init__(self, broker: MemoryBroker, group: str) -> None:
        self.group = group
        self.client = secrets.token_hex(3)
        self.dead = False
        self._broker = broker
        self._lock = threading.Lock()
        self._answer: Answer | None = None
        self._closed = False
        self.settle: Callable[[], None] = lambda: None
        self._open: set[str] = set()
        """Ids of half messages whose local transaction runs here: of them only its end can say anything."""

    # ------------------------------------------------------------ life

    def start(self, answer: Answer) -> None:
        """Become one whom the bus may ask. Raises NotRunning once closed."""
        self._check_alive()
        with self._lock:
            self._answer = self._answer or answer

    def settled_by(self, settle: Callable[[], None]) -> bool:
        """Return True: the bus settles before it shows anything, so that tests see what a broker has moments later."""
        self.settle = settle
        return True

    def close(self, flush_ms: int) -> None:
        """Leave the bus: no more publishing, no more answers."""
        self._closed = True

    def die(self) -> None:
        """End as a killed process does: what it has not said is never said."""
        self.dead = True
        with self._lock:
            self._open.clear()

    @property
    def answers(self) -> bool:
        """Whether it can be asked."""
        return self._answer is not None and not self._closed and not self.dead

    def ask(self, record: Record) -> LocalTransactionState:
        """Answer a check as its process does. Raises what the check raises."""
        with self._lock:
            runs = record.id in self._open
        if runs:
            return LocalTransactionState.OPEN
        if self._answer is None:
            return LocalTransactionState.UNKNOWN
        return self._answer(own_copy(record.stored))

    def _check_open(self) -> None:
        self._check_alive()
        if self._answer is None:
            raise NotRunning("the transport is not started: call start()")

    def _check_alive(self) -> None:
        if self.dead:
            raise ConnectionLost("this publisher was killed by the test", BROKER_NAME)
        if self._closed:
            raise NotRunning("the transport is closed")

    # ------------------------------------------------------------ messages

    def new_id(self) -> str:
        """Return a new message id. Raises NotRunning unless it was started and is not closed."""
        self._check_open()
        return secrets.token_hex(16).upper()

    def send(self, message: Message, *, attempt: int, timeout_ms: int) -> SendResult:
        """Send a message that consumers see at the bus's next `deliver`."""
        self._check_open()
        return self._broker.store(message, self.group, attempt=attempt, phase="send").result

    async def send_async(self, message: Message, *, attempt: int, timeout_ms: int) -> SendResult:
        """As `send`."""
        return self.send(message, attempt=attempt, timeout_ms=timeout_ms)

    def prepare(self, message: Message, *, attempt: int, timeout_ms: int, check_after_s: int | None) -> Prepared:
        """Store a half message."""
        self._check_open()
        record = self._broker.store(
            message, self.group, attempt=attempt, phase="prepare", check_after_s=check_after_s, client=self.client
        )
        with self._lock:
            if len(self._open) < OPEN_MAX:
                self._open.add(record.id)
        return Prepared(record.id, record.result, record.index)

    async def prepare_async(self, message: Message, *, attempt: int, timeout_ms: int, check_after_s: int | None) -> Prepared:
        """As `prepare`."""
        return self.prepare(message, attempt=attempt, timeout_ms=timeout_ms, check_after_s=check_after_s)

    def prepare_many(
        self, messages: Sequence[Message], *, timeout_ms: int, check_after_s: int | None
    ) -> list[Prepared | Exception]:
        """Store half messages."""
        calls = [
            partial(self.prepare, each, attempt=each.attempt, timeout_ms=timeout_ms, check_after_s=check_after_s)
            for each in messages
        ]
        return [_outcome(call) for call in calls]

    def send_many(self, messages: Sequence[Message], *, timeout_ms: int) -> list[SendResult | Exception]:
        """Send messages."""
        return [_outcome(partial(self.send, each, attempt=each.attempt, timeout_ms=timeout_ms)) for each in messages]

    def post(self, message: Message, callback: SendCallback, *, timeout_ms: int) -> None:
        """Send a message and tell how it went, before this returns."""
        try:
            result = self.send(message, attempt=message.attempt, timeout_ms=timeout_ms)
        except Exception as exc:
            callback(None, exc)
        else:
            callback(result, None)

    def decide(self, prepared: Prepared, *, commit: bool) -> None:
        """Decide on a half message; of a dead publisher nothing arrives."""
        self.leave(prepared)
        if not self.dead and not self._closed:
            self._broker.receive_decision(prepared.server_data, commit=commit)

    def leave(self, prepared: Prepared) -> None:
        """Leave a half message to checks."""
        with self._lock:
            self._open.discard(prepared.message_id)


def _outcome(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as exc:
        return exc
