"""A push consumer's listener: its arguments, its context, and the result of a call. Calls nothing itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from halfmoon.errors import UsageError
from halfmoon.model import ConsumeStatus, MessageQueue, StoredMessage


class ConsumeContext(msgspec.Struct):
    """Settings of a listener's call beside its result.

    ``ack_index``: with success, messages behind this index of the list count as failed (None: none). ``delay_level``: when
    failed messages come again (0: the broker decides by their count, -1: dead letters at once). ``reason``: why they failed, which
    Halfmoon's brokers keep with them; an exception that the listener raises says it by itself. ``suspend_ms``: how long the queue
    of an orderly consumer rests after a failure (None: as the settings say). ``auto_commit`` False, for orderly consumers: what
    is consumed is kept back until the listener returns COMMIT, and all that is kept back comes again when it returns ROLLBACK.
    """

    queue: MessageQueue
    ack_index: int | None = None
    delay_level: int = 0
    reason: str | None = None
    suspend_ms: int | None = None
    auto_commit: bool = True


class ListenerResult(msgspec.Struct):
    """The result of one call of the listener: ``good`` messages are consumed; ``start`` and ``over`` are its times (ms, steady)."""

    start: int
    context: ConsumeContext
    over: int = 0
    good: int = 0
    status: ConsumeStatus = ConsumeStatus.CONSUME_SUCCESS
    raised: str = ""

    @property
    def reason(self) -> str:
        """Why messages failed, as far as known."""
        return self.raised or self.context.reason or ""


class Listener(msgspec.Struct):
    """The user's function, and whether it is given a `ConsumeContext`."""

    function: Callable[..., Any]
    takes_context: bool

    def given(self, messages: list[StoredMessage], context: ConsumeContext) -> tuple[Any, ...]:
        """Return the arguments of a call: a list of its own, to do with as it likes."""
        return ([*messages], context) if self.takes_context else ([*messages],)


def check_callable(what: str, function: object) -> None:
    """Raise UsageError for what is no function, with the name of the method that was given it."""
    if not callable(function):
        raise UsageError(f"{what} takes a function, not {function!r:.60} ({type(function).__name__})")


def listener_of(function: Callable[..., Any]) -> Listener:
    """Return a function as a listener: a second parameter with a default value is its own and is not given the context.

    Raises UsageError for what cannot be called with the messages, or with the messages and the context.
    """
    check_callable("on_message", function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C
        return Listener(function, takes_context=False)
    required = [
        p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    listener = Listener(function, takes_context=len(required) >= 2)
    try:
        signature.bind(*(None, None)[: 1 + listener.takes_context])
    except TypeError:
        wanted = "takes the messages, or the messages and their context"
        raise UsageError(f"a listener {wanted}, and {function!r:.60} has {signature}") from None
    return listener
