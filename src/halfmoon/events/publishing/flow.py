"""How an operation is written once and driven twice: it yields steps, and a driver, blocking or asyncio, carries them out.

A step either gives its result back into the operation, or throws its error there. Decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Any, TypeVar

import msgspec

from halfmoon.events.databases.database import Provider, Values
from halfmoon.events.publishing.transport import Transport
from halfmoon.events.transaction import LocalTransaction
from halfmoon.model import Message

T = TypeVar("T")


class Send(msgspec.Struct, frozen=True):
    """Send a message that consumers see at once; gives a `SendResult`."""

    message: Message
    attempt: int
    timeout_ms: int


class Prepare(msgspec.Struct, frozen=True):
    """Store a half message; gives a `Prepared`."""

    message: Message
    attempt: int
    timeout_ms: int
    check_after_s: int | None


class Write(msgspec.Struct, frozen=True):
    """Run a statement inside a transaction; gives the number of rows. One that waits blocks, on an event loop, too: it is one of a
    blocking connection."""

    provider: Provider
    transaction: LocalTransaction
    statement: str
    values: Values


class Pause(msgspec.Struct, frozen=True):
    """Wait before another attempt; gives None."""

    seconds: float


class Now(msgspec.Struct, frozen=True):
    """Gives the time, in ms since the epoch, and a steady one in seconds, for deadlines."""


NOW = Now()


Step = Send | Prepare | Write | Pause | Now
Flow = Generator[Step, Any, T]


def drive(flow: Flow[T], transport: Transport) -> T:
    """Run an operation in this thread. Raises what it raises."""
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = flow.send(result) if error is None else flow.throw(error)
        except StopIteration as stop:
            value: T = stop.value
            return value
        result, error = None, None
        try:
            match step:
                case Send(message, attempt, timeout_ms):
                    result = transport.send(message, attempt=attempt, timeout_ms=timeout_ms)
                case Prepare(message, attempt, timeout_ms, check_after_s):
                    result = transport.prepare(message, attempt=attempt, timeout_ms=timeout_ms, check_after_s=check_after_s)
                case Write(provider, transaction, statement, values):
                    result = provider.rows(transaction).run(statement, values)
                case Pause(seconds):
                    time.sleep(seconds)
                case Now():
                    result = _now()
        except BaseException as exc:
            error = exc


async def drive_async(flow: Flow[T], transport: Transport) -> T:
    """Run an operation on the running event loop. Raises what it raises."""
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = flow.send(result) if error is None else flow.throw(error)
        except StopIteration as stop:
            value: T = stop.value
            return value
        result, error = None, None
        try:
            match step:
                case Send(message, attempt, timeout_ms):
                    result = await transport.send_async(message, attempt=attempt, timeout_ms=timeout_ms)
                case Prepare(message, attempt, timeout_ms, check_after_s):
                    result = await transport.prepare_async(
                        message, attempt=attempt, timeout_ms=timeout_ms, check_after_s=check_after_s
                    )
                case Write(provider, transaction, statement, values) if transaction.waits:
                    result = provider.rows(transaction).run(statement, values)
                case Write(provider, transaction, statement, values):
                    result = await provider.run_async(transaction, statement, values)
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Now():
                    result = _now()
        except BaseException as exc:
            error = exc


def _now() -> tuple[int, float]:
    return time.time_ns() // 1_000_000, time.monotonic()
