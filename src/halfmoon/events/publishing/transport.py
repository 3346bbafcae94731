"""Transport of events: one attempt at a time, to a broker or to a bus in memory. Retries nothing and decides nothing.

`Transport` is the interface. `halfmoon.events.publishing.client_transport` implements it over the client,
`halfmoon.events.testing.MemoryBus` in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from halfmoon.model import LocalTransactionState, Message, SendResult, StoredMessage

TOGETHER_MAX = 256
"""Messages of one call that are under way at one time; the next ones follow when these are answered."""

Answer = Callable[[StoredMessage], LocalTransactionState]
"""Answers a broker's check of a half message. Runs in a thread.

OPEN: not decided yet, the broker asks again; UNKNOWN, or an exception: it asks again a few times.
"""

SendCallback = Callable[[SendResult | None, BaseException | None], None]
"""Called with the result or the error of a send that nobody waits for. Runs on the transport's own thread; must not wait."""


class Prepared(msgspec.Struct, frozen=True):
    """A half message that a broker has stored. ``server_data`` is what the transport needs to decide it, opaque to others."""

    message_id: str
    result: SendResult
    server_data: Any


class Transport(Protocol):
    """Carries messages. Every call makes one attempt; the message's id (``Message.msg_id``) is the caller's and stays the same when
    it tries again, ``attempt`` counts from 1. A message whose broker did not keep a promise (flush, slave) counts as failed.

    Calls raise what the client raises (`HalfmoonError`); waiting ends after ``timeout_ms``. Safe to use from many threads.
    """

    def start(self, answer: Answer) -> None:
        """Open it; from now on ``answer`` may be asked. Starting again does nothing."""

    def settled_by(self, settle: Callable[[], None]) -> bool:
        """Return whether ``settle()`` is called whenever somebody wants to see what became of half messages, as tests do.

        Then nothing is decided in the background.
        """

    def close(self, flush_ms: int) -> None:
        """Hand over what is under way for at most so long, and close. The rest is the check-back's. Closing again does nothing."""

    def new_id(self) -> str:
        """Return a new message id, as the client makes them (UNIQ_KEY: tools read the time from it)."""

    def send(self, message: Message, *, attempt: int, timeout_ms: int) -> SendResult:
        """Send a message that consumers see at once."""

    async def send_async(self, message: Message, *, attempt: int, timeout_ms: int) -> SendResult:
        """As `send`, on any event loop."""

    def prepare(self, message: Message, *, attempt: int, timeout_ms: int, check_after_s: int | None) -> Prepared:
        """Store a half message: the first phase. ``check_after_s``: the age before which the broker does not ask."""

    async def prepare_async(self, message: Message, *, attempt: int, timeout_ms: int, check_after_s: int | None) -> Prepared:
        """As `prepare`, on any event loop."""

    def prepare_many(
        self, messages: Sequence[Message], *, timeout_ms: int, check_after_s: int | None
    ) -> list[Prepared | Exception]:
        """Store half messages, all at once, each by its `Message.attempt`: what `prepare` returns, or raises, of each."""

    def send_many(self, messages: Sequence[Message], *, timeout_ms: int) -> list[SendResult | Exception]:
        """Send messages, all at once, as `prepare_many` stores them."""

    def post(self, message: Message, callback: SendCallback, *, timeout_ms: int) -> None:
        """Begin to send a message and return at once; ``callback`` is called when it has ended."""

    def decide(self, prepared: Prepared, *, commit: bool) -> None:
        """Tell the broker, one-way, what to do with a half message: the second phase. Returns at once and raises nothing."""

    def leave(self, prepared: Prepared) -> None:
        """Nothing will be decided here: from now on checks of this message are answered by ``answer``."""
