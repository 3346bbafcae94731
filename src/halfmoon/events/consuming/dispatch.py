"""One event of one group, from its message to what is to become of it: finds the function, decodes, calls, judges.

Waits for nothing but the function and its transaction; knows neither brokers nor threads.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.events.consuming.context import ConsumerContext
from halfmoon.events.consuming.on import EVERY, Handler
from halfmoon.events.databases.database import Provider
from halfmoon.events.dedup.ledger import ConsumedBefore, ConsumedKey, ConsumedLedger, NotCommitted, key_of, seen, take_back
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.encoding.envelope import CODE, event_of, event_without_payload, topic_of
from halfmoon.events.event import Event
from halfmoon.events.tracing import failed, span, step
from halfmoon.events.typed import type_of
from halfmoon.model import StoredMessage

T = TypeVar("T")


class Outcome(NamedTuple):
    """Outcome of a message: consumed, or delivered again for a reason.

    ``error`` is what was raised; who asked logs it if it is an Exception, and knows what becomes of the message.
    """

    consumed: bool
    reason: str = ""
    error: BaseException | None = None


class NoConsumer(HalfmoonError):
    """A message that nothing of its group consumes: one that comes again, whose function is gone, or one of another release."""


class _RollBack(Exception):
    """Rolls the transaction back that the function was lent."""


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
        ledgers: Mapping[int, ConsumedLedger],
        around: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> None:
        self.group = group
        self.busy = 0
        """Return how many functions run now."""
        self._counting = threading.Lock()
        self._codecs, self._ledgers = codecs, ledgers
        self._around: Callable[[], AbstractContextManager[Any]] = around or nullcontext
        self._handlers = {(handler.topic, handler.code): handler for handler in handlers}
        for handler in self._handlers.values():
            _check(handler, ledgers.get(id(handler.dedup)))
            if (declared := type_of(handler.payload)) is not None:
                (handler.codecs or codecs).accept(declared.version, handler.topic, handler.code)

    def codes(self) -> dict[str, list[str]]:
        """Return the codes that are asked for, by topic, both sorted; ``*`` alone where every code is."""
        codes_of: dict[str, set[str]] = {}
        for topic, code in self._handlers:
            codes_of.setdefault(topic, set()).add(code)
        return {topic: [EVERY] if EVERY in codes else sorted(codes) for topic, codes in sorted(codes_of.items())}

    def is_async(self, message: StoredMessage) -> bool:
        """Whether a coroutine function consumes the message: then `consume_async` is to be called."""
        handler = self._find(message)
        return handler is not None and handler.is_async

    def _find(self, message: StoredMessage) -> Handler | None:
        topic, code = topic_of(message), message.properties.get(CODE) or message.tag or ""
        return self._handlers.get((topic, code)) or self._handlers.get((topic, EVERY))

    def consume(self, message: StoredMessage, attempt: int) -> Outcome:
        """Have a message processed in this thread, by a plain function: then `consume_async` never waits. Raises nothing."""
        try:
            self.consume_async(message, attempt).send(None)
        except StopIteration as done:
            outcome: Outcome = done.value
            return outcome
        raise AssertionError("a plain function is not awaited")

    async def consume_async(self, message: StoredMessage, attempt: int) -> Outcome:
        """Have a message processed on this event loop. Raises CancelledError when it is cancelled, and nothing else."""
        handler, event = self._find(message), event_without_payload(message)
        try:
            with span("consume", event, group=self.group, message=message, attempt=attempt) as made:
                if handler is None:
                    raise NoConsumer(f"nothing of group {self.group} consumes {event.topic}/{event.code or '(no code)'}")
                event = event_of(message, handler.codecs or self._codecs, payload=handler.payload)
                context = ConsumerContext(event, message, self.group, attempt)
                with self._counted(), nullcontext() if handler.is_async else self._around():
                    decision = await self._call(handler, event, context)
                if decision != "redeliver":
                    step("consume", event, group=self.group, attempt=attempt, decision=decision)
                    return Outcome(True)
                if made is not None:
                    failed(made, "RECONSUME_LATER")
                reason = context.reason or "rollback-only, no reason was given"
                step("consume", event, group=self.group, attempt=attempt, decision=decision, error=reason)
                return Outcome(False, reason)
        except BaseException as exc:  # SystemExit, too: a function does not end the consumer
            if handler is not None and handler.is_async and _ends_the_task(exc):
                raise
            level = logging.INFO if isinstance(exc, Exception) else logging.ERROR  # an Exception is logged by whoever called
            step("consume", event, group=self.group, attempt=attempt, decision="redeliver", error=exc, level=level)
            return Outcome(False, f"{type(exc).__name__}: {exc}", exc)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._counting:
            self.busy += 1
        try:
            yield
        finally:
            with self._counting:
                self.busy -= 1

    async def _call(self, handler: Handler, event: Event, context: ConsumerContext) -> str:
        """Call the function, in a transaction where it has a ledger; return what is decided."""
        ledger = self._ledgers.get(id(handler.dedup))
        if ledger is None:
            await _run(handler, event, context)
            return "redeliver" if context.rollback_only else "consumed"
        note, inside = key_of(self.group, event.topic, event.id), True
        try:
            async with ledger.lend(note) as context.session:
                await _run(handler, event, context)
                if context.rollback_only:
                    raise _RollBack
                inside = False
        except ConsumedBefore:  # or the note stands in a transaction that a pool handed out while it was open
            await _require_seen(handler, ledger, note)
            return "consumed before"
        except BaseException as exc:
            if inside:  # a commit that raises may be one all the same
                await _asked(handler, take_back, ledger.provider, note)
            if isinstance(exc, _RollBack):
                return "redeliver"
            raise
        await _require_seen(handler, ledger, note)
        return "consumed"


def _check(handler: Handler, ledger: ConsumedLedger | None) -> None:
    if ledger is None or ledger.is_async is handler.is_async:
        return
    if handler.is_async:
        raise UsageError(
            f"{handler.place}: dedup of a coroutine function must be an async_sessionmaker or a provider of halfmoon.events.aio"
        )
    raise UsageError(f"{handler.place}: dedup of a plain function cannot be an async_sessionmaker, or of an event loop")


def _ends_the_task(error: BaseException) -> bool:
    """Return whether an error that left a coroutine function is the end of its own task."""
    task = asyncio.current_task()
    cancelled = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
    return cancelled or isinstance(error, GeneratorExit)


async def _run(handler: Handler, event: Event, context: ConsumerContext) -> None:
    given = event.payload if handler.typed else event
    result = handler.function(given, context) if handler.takes_context else handler.function(given)
    if handler.is_async:
        await result
    elif inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise UsageError(f"{handler.name} returned an awaitable: declare it with async def")


async def _require_seen(handler: Handler, ledger: ConsumedLedger, note: ConsumedKey) -> None:
    """Raise NotCommitted unless the note of an event is seen committed."""
    if not await _asked(handler, seen, ledger.provider, note):
        raise NotCommitted(f"{handler.name} was called, but its transaction did not commit: let errors of the database go on")


async def _asked(handler: Handler, question: Callable[[Provider, ConsumedKey], T], provider: Provider, note: ConsumedKey) -> T:
    """Ask the database; in a thread where an event loop would wait for it."""
    return await asyncio.to_thread(question, provider, note) if handler.is_async else question(provider, note)
