"""A transport that records what it is told and fails by script, and a provider over sqlite3 whose transactions are blocks."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from halfmoon.effects import Op
from halfmoon.errors import RequestTimeout
from halfmoon.events.databases.database import Values
from halfmoon.events.dbapi import DbapiProvider, ProxyConnection
from halfmoon.events.publishing.transport import Answer, SendCallback
from halfmoon.events.transaction import LocalTransaction
from halfmoon.model import Message, MessageQueue, SendResult, SendStatus, StoredMessage
from halfmoon.testing.events.transport import InMemory, T


class Call(NamedTuple):
    """One attempt that a transport was asked for."""

    kind: str
    message: Message
    attempt: int
    timeout_ms: int
    check_after_s: int | None = None


class Prepared(NamedTuple):
    """A half message that was stored."""

    message_id: str
    result: SendResult


class FakeTransport(InMemory):
    """Records. ``script`` holds what the next attempts raise, None for success; after it everything succeeds."""

    def __init__(self, *script: Exception | None) -> None:
        self.script: deque[Exception | None] = deque(script)
        self.calls: list[Call] = []
        self.decided: list[tuple[str, bool]] = []
        self.gone: list[str] = []
        self.settle: Callable[[], None] = lambda: None
        self.life: list[str] = []
        self.answer: Answer | None = None
        self.before: Any = lambda call: None
        self.awaited = 0
        """Operations that were driven on an event loop."""
        self._ids = count(1)

    def start(self, answer: Answer) -> None:
        self.answer = answer
        self.life.append("start")

    def settled_by(self, settle: Callable[[], None]) -> bool:
        self.settle = settle
        return True

    def close(self, flush_ms: int) -> None:
        self.life.append(f"close {flush_ms}")

    def new_id(self) -> str:
        return f"{next(self._ids):032X}"

    async def run_async(self, operation: Op[T]) -> T:
        self.awaited += 1
        return await super().run_async(operation)

    def send(self, messages: Sequence[Message], timeout_ms: int) -> Op[Sequence[SendResult | Exception]]:
        yield from ()
        return [self._outcome(Call("send", message, message.attempt, timeout_ms)) for message in messages]

    def prepare(
        self, messages: Sequence[Message], timeout_ms: int, check_after_s: int | None = None
    ) -> Op[Sequence[Prepared | Exception]]:
        yield from ()
        calls = [Call("prepare", message, message.attempt, timeout_ms, check_after_s) for message in messages]
        outcomes = [self._outcome(call) for call in calls]
        return [one if isinstance(one, Exception) else Prepared(one.msg_id, one) for one in outcomes]

    def _outcome(self, call: Call) -> SendResult | Exception:
        try:
            return self._done(call)
        except Exception as exc:
            return exc

    def post(self, message: Message, callback: SendCallback, *, timeout_ms: int) -> None:
        outcome = self._outcome(Call("post", message, message.attempt, timeout_ms))
        if isinstance(outcome, Exception):
            callback(None, outcome)
        else:
            callback(outcome, None)

    def decide(self, half: Prepared, *, commit: bool) -> None:
        self.decided.append((half.message_id, commit))

    def leave(self, half: Prepared) -> None:
        self.gone.append(half.message_id)

    # ------------------------------------------------------------ what tests ask

    @property
    def decisions(self) -> list[tuple[str, bool]]:
        """What was decided, in order, once publishers have asked their databases."""
        self.settle()
        return self.decided

    @property
    def left(self) -> list[str]:
        """What was left to the broker's check, in order."""
        self.settle()
        return self.gone

    @property
    def kinds(self) -> list[str]:
        """The kinds of the attempts, in order."""
        return [call.kind for call in self.calls]

    @property
    def messages(self) -> list[Message]:
        """The messages of the attempts, in order."""
        return [call.message for call in self.calls]

    def _done(self, call: Call) -> SendResult:
        self.calls.append(call)
        self.before(call)
        if self.script and (error := self.script.popleft()) is not None:
            raise error
        assert call.message.msg_id is not None
        queue = MessageQueue(call.message.topic, "broker-a", 0)
        return SendResult(SendStatus.SEND_OK, call.message.msg_id, "0" * 32, queue, len(self.calls))


def lost() -> RequestTimeout:
    """The error of an attempt whose answer did not come."""
    return RequestTimeout("no answer in time", "127.0.0.1:1")


def stored(message: Message, **properties: str) -> StoredMessage:
    """Return a message as a broker gives it back."""
    found = {**message.wire_properties(), **properties}
    return StoredMessage(
        topic=message.topic, queue_id=0, queue_offset=0, physical_offset=0, body=message.body, properties=found, flag=0, sys_flag=0,
        born_ms=1, born_host="127.0.0.1:1", store_ms=2, store_host="127.0.0.1:2", reconsume_times=0, prepared_transaction_offset=0,
        body_crc=0, size_bytes=0, offset_msg_id="0" * 32,
    )  # fmt: skip


# ---------------------------------------------------------------- a database


class Blocks(DbapiProvider):
    """The provider over an SQLite file; its transactions are the blocks of `begin`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.awaited = 0
        """Statements that were run for an event loop."""
        super().__init__(lambda: self._opened())

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=1, check_same_thread=False)
        connection.execute("PRAGMA synchronous=OFF")  # no test here is about power
        return connection

    @contextmanager
    def begin(self, *, waits: bool = True) -> Iterator[ProxyConnection]:
        """A transaction: committed at the end of the block, rolled back by an exception. ``waits``: as on no event loop."""
        with closing(self.connect()) as connection, connection:
            connection.begun().waits = waits
            yield connection

    async def run_async(self, transaction: LocalTransaction, statement: str, values: Values | None = None) -> int:
        self.awaited += 1
        return await super().run_async(transaction, statement, values)

    async def all_async(
        self, transaction: LocalTransaction, statement: str, values: Values | None = None
    ) -> Sequence[Sequence[Any]]:
        self.awaited += 1
        return await super().all_async(transaction, statement, values)
