"""How an operation is written once and driven twice: it yields steps, and a driver, blocking or asyncio, carries them out.

A step either gives its result back into the operation, or throws its error there. Decides nothing.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeVar

import msgspec

from halfmoon.events.databases.database import Provider, Values
from halfmoon.events.publishing.transport import TOGETHER_MAX, Transport
from halfmoon.events.transaction import LocalTransaction
from halfmoon.model import Message

T = TypeVar("T")


class Attempt(msgspec.Struct, frozen=True):
    """Make an attempt with each of some messages, all at once, by their `Message.attempt`; gives a list of results and errors.

    Consumers see the messages at once; ``half``: half messages are stored, each gives a `Prepared`.
    """

    messages: tuple[Message, ...]
    timeout_ms: int
    half: bool = False
    check_after_s: int | None = None


class Write(msgspec.Struct, frozen=True):
    """Run a statement inside a transaction; gives the number of rows. One that waits blocks, on an event loop, too: it is one of a
    blocking connection."""

    provider: Provider
    transaction: LocalTransaction
    statement: str
    values: Values


class Read(msgspec.Struct, frozen=True):
    """Run a query inside a transaction; gives its rows. As `Write`."""

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


Step = Attempt | Write | Read | Pause | Now
Flow = Generator[Step, Any, T]

Wait = Callable[[Awaitable[Any]], Any]


def drive(flow: Flow[T], transport: Transport, wait: Wait | None = None) -> T:
    """Run an operation in this thread. ``wait`` waits for an awaitable where blocking code runs on an event loop, as in a greenlet.

    Raises what the operation raises.
    """
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = flow.send(result) if error is None else flow.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        error = None
        try:
            over_loop = wait is not None and not isinstance(step, Write | Read)
            result = wait(_carried_out_async(step, transport)) if wait and over_loop else _carried_out(step, transport)
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
            return stop.value  # type: ignore[no-any-return]
        error = None
        try:
            result = await _carried_out_async(step, transport)
        except BaseException as exc:
            error = exc


def _carried_out(step: Step, transport: Transport) -> Any:
    match step:
        case Attempt():
            return _attempted(step, transport)
        case Write(provider, transaction, statement, values):
            return provider.rows(transaction).run(statement, values)
        case Read(provider, transaction, statement, values):
            return provider.rows(transaction).all(statement, values)
        case Pause(seconds):
            time.sleep(seconds)
        case Now():
            return time.time_ns() // 1_000_000, time.monotonic()
    return None


async def _carried_out_async(step: Step, transport: Transport) -> Any:
    match step:
        case Attempt():
            return await _attempted_async(step, transport)
        case Write(provider, transaction, statement, values) if not transaction.waits:
            return await provider.run_async(transaction, statement, values)
        case Read(provider, transaction, statement, values) if not transaction.waits:
            return await provider.all_async(transaction, statement, values)
        case Pause(seconds):
            return await asyncio.sleep(seconds)
    return _carried_out(step, transport)


def _attempted(step: Attempt, transport: Transport) -> Sequence[Any]:
    messages, timeout_ms = step.messages, step.timeout_ms
    if len(messages) > 1 and step.half:
        return transport.prepare_many(messages, timeout_ms=timeout_ms, check_after_s=step.check_after_s)
    if len(messages) > 1:
        return transport.send_many(messages, timeout_ms=timeout_ms)
    attempt = messages[0].attempt
    try:
        if step.half:
            return [transport.prepare(messages[0], attempt=attempt, timeout_ms=timeout_ms, check_after_s=step.check_after_s)]
        return [transport.send(messages[0], attempt=attempt, timeout_ms=timeout_ms)]
    except Exception as exc:
        return [exc]


async def _attempted_async(step: Attempt, transport: Transport) -> Sequence[Any]:
    """Make the attempts, so many at once; the time is for all."""

    async def one(message: Message, left_ms: int) -> Any:
        attempt = message.attempt
        try:
            if step.half:
                return await transport.prepare_async(message, attempt=attempt, timeout_ms=left_ms, check_after_s=step.check_after_s)
            return await transport.send_async(message, attempt=attempt, timeout_ms=left_ms)
        except Exception as exc:
            return exc

    outcomes: list[Any] = []
    until_s = time.monotonic() + step.timeout_ms / 1000
    for first in range(0, len(step.messages), TOGETHER_MAX):
        left_ms = max(1, math.ceil((until_s - time.monotonic()) * 1000))
        outcomes += await asyncio.gather(*[one(message, left_ms) for message in step.messages[first : first + TOGETHER_MAX]])
    return outcomes
