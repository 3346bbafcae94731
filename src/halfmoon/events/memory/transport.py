"""One publisher's way to a `MemoryBus`: a `Transport` that stands for a process, and can die as one."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from halfmoon.errors import ConnectionLost, NotRunning
from halfmoon.events.memory.broker import BROKER_NAME, MemoryBroker
from halfmoon.events.memory.records import Record, own_copy
from halfmoon.events.publishing.transport import Answer, Prepared, SendCallback
from halfmoon.model import LocalTransactionState, Message, SendResult

T = TypeVar("T")


class MemoryTransport:
    """A `Transport` on a bus; made by `MemoryBus.transport`. Nothing waits, so the time-outs are never reached."""

    def __init__(self, broker: MemoryBroker, group: str) -> None:
        self.group = group
        self.client = secrets.token_hex(3)
        self.dead = False
        self._broker = broker
        self._answer: Answer | None = None
        self._closed = False
        self.settle: Callable[[], None] = lambda: None
        self._open: set[str] = set()
        """Ids of half messages whose local transaction runs here: of them only its end can say anything."""

    # ------------------------------------------------------------ life

    def start(self, answer: Answer) -> None:
        """Become one whom the bus may ask. Raises NotRunning once closed."""
        self._check_alive()
        self._answer = self._answer or answer

    def settled_by(self, settle: Callable[[], None]) -> bool:
        """Return True: the bus settles before it shows anything, so that tests see what a broker has moments later."""
        self.settle = settle
        return True

    def close(self, flush_ms: int) -> None:
        """Leave the bus: no more publishing, no more answers."""
        self._closed = True

    @property
    def answers(self) -> bool:
        """Whether it can be asked."""
        return self._answer is not None and not self._closed and not self.dead

    def ask(self, record: Record) -> LocalTransactionState:
        """Answer a check as its process does. Raises what the check raises."""
        if record.id in self._open or self._answer is None:
            return LocalTransactionState.OPEN
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
        return self._broker.store(message, self, attempt=attempt, phase="send").result

    async def send_async(self, message: Message, *, attempt: int, timeout_ms: int) -> SendResult:
        """As `send`."""
        return self.send(message, attempt=attempt, timeout_ms=timeout_ms)

    def prepare(self, message: Message, *, attempt: int, timeout_ms: int, check_after_s: int | None) -> Prepared:
        """Store a half message."""
        self._check_open()
        record = self._broker.store(message, self, attempt=attempt, phase="prepare", check_after_s=check_after_s)
        self._open.add(record.id)
        return Prepared(record.id, record.result, record)

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
        self.leave(prepared)
        if not self.dead and not self._closed:
            self._broker.receive_decision(prepared.server_data, commit=commit)

    def leave(self, prepared: Prepared) -> None:
        """Leave a half message to checks."""
        self._open.discard(prepared.message_id)


def _outcome(call: Callable[..., T], message: Message, **options: Any) -> T | Exception:
    try:
        return call(message, **options)
    except Exception as exc:
        return exc
