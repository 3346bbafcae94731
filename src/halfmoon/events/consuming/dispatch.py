"""One event of one group, from its message to what is to become of it: finds the function, decodes, calls, judges.

Waits for nothing but the function and its transaction; knows neither brokers nor threads.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.events.consuming.context import ConsumerContext
from halfmoon.events.consuming.on import EVERY, Handler
from halfmoon.events.dedup.ledger import Consumed, Ledger, NotCommitted, key_of, seen, take_back
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.encoding.envelope import CODE, event_of, event_without_payload, topic_of
from halfmoon.events.event import Event
from halfmoon.events.tracing import failed, span, step
from halfmoon.events.typed import type_of
from halfmoon.model import StoredMessage

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class Outcome(NamedTuple):
    """What is to become of a message: consumed, or delivered again for a reason. ``error`` is what was raised."""

    consumed: bool
    reason: str = ""
    error: BaseException | None = None


class NoConsumer(HalfmoonError):
    """A message that nothing of its group consumes: one that comes again, whose function is gone, or one of another release."""


class _RollBack(Exception):
    """Rolls the transaction back that the function was lent."""


class Consumer(NamedTuple):
    """A declaration with its ledger, and what is known of its function."""

    handler: Handler
    ledger: Ledger | None
    is_async: bool
    takes_context: bool

    def arguments(self, event: Event, context: ConsumerContext) -> tuple[Any, ...]:
        """Return what the function is called with."""
        given = event.payload if self.handler.typed else event
        return (given, context) if self.takes_context else (given,)


class Dispatch:
    """The functions of one group.

    ``around`` gives a block in which every plain function is called, such as one that closes connections of its thread.

    A message whose code nobody of the group asks for is delivered again and becomes a dead letter in the end: it is one that
    waits for a function which is gone, or which another member, of a newer release, has. Consumed, it would be lost unseen.
    """

    def __init__(
        self,
        group: str,
        handlers: Iterable[Handler],
        codecs: Codecs,
        ledgers: Mapping[int, Ledger],
        around: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> None:
        self.group = group
        self._codecs = codecs
        self._around: Callable[[], AbstractContextManager[Any]] = around or nullcontext
        self._consumers = {
            (handler.topic, handler.code): Consumer(
                handler, ledgers[id(handler.dedup)] if handler.dedup is not None else None, handler.is_async, handler.takes_context
            )
            for handler in handlers
        }
        for consumer in self._consumers.values():
            _check(consumer)
            if (declared := type_of(consumer.handler.payload)) is not None:
                (consumer.handler.codecs or codecs).accept(declared.version, consumer.handler.topic, consumer.handler.code)

    def codes(self) -> dict[str, list[str]]:
        """Return the codes that are asked for, by topic, both sorted; ``*`` alone where every code is."""
        codes_of: dict[str, set[str]] = {}
        for topic, code in self._consumers:
            codes_of.setdefault(topic, set()).add(code)
        return {topic: [EVERY] if EVERY in codes else sorted(codes) for topic, codes in sorted(codes_of.items())}

    def is_async(self, message: StoredMessage) -> bool:
        """Whether a coroutine function consumes the message: then `consume_async` is to be called."""
        consumer = self._find(message)
        return consumer is not None and consumer.is_async

    # ------------------------------------------------------------ both ways

    def consume(self, message: StoredMessage, attempt: int) -> Outcome:
        """Have a message processed in this thread. Raises nothing."""
        event = event_without_payload(message)
        try:
            with span("consume", event, group=self.group, message=message, attempt=attempt) as made:
                consumer, event, context = self._prepared(message, attempt)
                with self._around():
                    return _noted(made, self._call(consumer, event, context))
        except BaseException as exc:  # SystemExit, too: a function does not end the consumer
            return self._failed(event, attempt, exc)

    async def consume_async(self, message: StoredMessage, attempt: int) -> Outcome:
        """Have a message processed on this event loop. Raises CancelledError when it is cancelled, and nothing else."""
        event = event_without_payload(message)
        try:
            with span("consume", event, group=self.group, message=message, attempt=attempt) as made:
                consumer, event, context = self._prepared(message, attempt)
                return _noted(made, await self._call_async(consumer, event, context))
        except BaseException as exc:
            if isinstance(exc, GeneratorExit) or (isinstance(exc, asyncio.CancelledError) and _is_cancelled()):
                raise
            return self._failed(event, attempt, exc)

    def _call(self, consumer: Consumer, event: Event, context: ConsumerContext) -> Outcome:
        handler, ledger = consumer.handler, consumer.ledger
        try:
            if ledger is None:
                _refuse_awaitable(handler, handler.function(*consumer.arguments(event, context)))
            else:
                note, inside = key_of(self.group, event.topic, event.id), True
                try:
                    with ledger.lend(note) as context.session:
                        _refuse_awaitable(handler, handler.function(*consumer.arguments(event, context)))
                        _roll_back_if_asked(context)
                        inside = False
                except BaseException as exc:
                    if isinstance(exc, Consumed):  # or the note stands in a transaction that a pool handed out while it was open
                        _require(seen(ledger.provider, note), handler)
                    elif inside:  # a commit that raises may be one all the same
                        take_back(ledger.provider, note)
                    raise
                _require(seen(ledger.provider, note), handler)
        except (Consumed, _RollBack) as exc:
            return self._ended(event, context, exc)
        return self._ended(event, context)

    async def _call_async(self, consumer: Consumer, event: Event, context: ConsumerContext) -> Outcome:
        handler, ledger = consumer.handler, consumer.ledger
        try:
            if ledger is None:
                await handler.function(*consumer.arguments(event, context))
            else:
                note, inside = key_of(self.group, event.topic, event.id), True
                try:
                    async with ledger.lend(note) as context.session:
                        await handler.function(*consumer.arguments(event, context))
                        _roll_back_if_asked(context)
                        inside = False
                except BaseException as exc:
                    if isinstance(exc, Consumed):
                        _require(await asyncio.to_thread(seen, ledger.provider, note), handler)
                    elif inside:
                        await asyncio.to_thread(take_back, ledger.provider, note)
                    raise
                _require(await asyncio.to_thread(seen, ledger.provider, note), handler)
        except (Consumed, _RollBack) as exc:
            return self._ended(event, context, exc)
        return self._ended(event, context)

    # ------------------------------------------------------------ parts

    def _find(self, message: StoredMessage) -> Consumer | None:
        topic, code = topic_of(message), message.properties.get(CODE) or message.tag or ""
        return self._consumers.get((topic, code)) or self._consumers.get((topic, EVERY))

    def _prepared(self, message: StoredMessage, attempt: int) -> tuple[Consumer, Event, ConsumerContext]:
        consumer = self._find(message)
        if consumer is None:
            event = event_without_payload(message)
            raise NoConsumer(f"nothing of group {self.group} consumes {event.topic}/{event.code or '(no code)'}")
        handler = consumer.handler
        event = event_of(message, handler.codecs or self._codecs, payload=handler.payload)
        return consumer, event, ConsumerContext(event, message, self.group, attempt)

    def _ended(self, event: Event, context: ConsumerContext, ended_by: Exception | None = None) -> Outcome:
        if isinstance(ended_by, Consumed):
            step("consume", event, group=self.group, attempt=context.attempt, decision="consumed before")
            return Outcome(True)
        if context.rollback_only:
            reason = context.reason or "rollback-only, no reason was given"
            step("consume", event, group=self.group, attempt=context.attempt, decision="redeliver", error=reason)
            return Outcome(False, reason)
        step("consume", event, group=self.group, attempt=context.attempt, decision="consumed")
        return Outcome(True)

    def _failed(self, event: Event, attempt: int, error: BaseException) -> Outcome:
        reason = f"{type(error).__name__}: {error}"
        level = logging.WARNING if isinstance(error, HalfmoonError) else logging.ERROR
        step("consume", event, group=self.group, attempt=attempt, decision="redeliver", error=error, level=level)
        return Outcome(False, reason, error)


def _check(consumer: Consumer) -> None:
    handler, ledger = consumer.handler, consumer.ledger
    if ledger is None or ledger.is_async is consumer.is_async:
        return
    if consumer.is_async:
        raise UsageError(
            f"{handler.place}: dedup of a coroutine function must be an async_sessionmaker or a provider of halfmoon.events.aio"
        )
    raise UsageError(f"{handler.place}: dedup of a plain function cannot be an async_sessionmaker, or of an event loop")


def _noted(made: Span | None, outcome: Outcome) -> Outcome:
    """Note in a span that its event comes again; the outcome goes on as it is."""
    if made is not None and not outcome.consumed:
        failed(made, "RECONSUME_LATER")
    return outcome


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _refuse_awaitable(handler: Handler, result: object) -> None:
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise UsageError(f"{handler.name} returned an awaitable: declare it with async def")


def _require(committed: bool, handler: Handler) -> None:
    """Raise NotCommitted unless the note of an event was seen committed."""
    if not committed:
        raise NotCommitted(f"{handler.name} was called, but its transaction did not commit: let errors of the database go on")


def _roll_back_if_asked(context: ConsumerContext) -> None:
    if context.rollback_only:
        raise _RollBack
