"""Transport of events: one attempt at a time, to a broker or to a bus in memory. Retries nothing and decides nothing.

`Transport` is the interface. `halfmoon.events.publishing.client_transport` implements it over the client,
`halfmoon.events.testing.MemoryBus` in memory. What waits is an operation (`halfmoon.effects`): a publish is one that is made of the
transport's own and of statements, and the transport drives it from its beginning to its end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from halfmoon.effects import Op
from halfmoon.model import LocalTransactionState, Message, SendResult, StoredMessage

T = TypeVar("T")

Answer = Callable[[StoredMessage], LocalTransactionState]
"""Answers a broker's check of a half message. Runs in a thread.

OPEN: not decided yet, the broker asks again; UNKNOWN, or an exception: it asks again a few times.
"""

SendCallback = Callable[[SendResult | None, BaseException | None], None]
"""Called with the result or the error of a send that nobody waits for. Runs on the transport's own thread; must not wait."""

Wait = Callable[[Awaitable[Any]], Any]
"""Waits for an awaitable where blocking code runs on an event loop, as in a greenlet."""


class Half(Protocol):
    """Half message that a broker has stored. The rest of it is known to its transport only."""

    @property
    def message_id(self) -> str:
        """Id of the message, which consumers see."""

    @property
    def result(self) -> SendResult:
        """Place where the message was stored."""


class Transport(Protocol):
    """Carrier of messages: each operation makes one attempt with each of some messages, all at once.

    A message's id (``Message.msg_id``) is the caller's and stays the same when it tries again, ``Message.attempt`` counts from 1. A
    message whose broker did not keep a promise (flush, slave) counts as failed.

    An operation returns a result or an error of each message in their order; of a single message, and where none could be sent, it
    may raise the error. Errors are the client's (`HalfmoonError`); waiting ends after ``timeout_ms``. Safe for many threads.
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

    def run(self, operation: Op[T], wait: Wait | None = None) -> T:
        """Drive an operation in this thread, and the functions that it runs. With ``wait`` nothing blocks but these functions."""

    async def run_async(self, operation: Op[T]) -> T:
        """Drive an operation on the running event loop, where the functions that it runs are called, and awaited."""

    def send(self, messages: Sequence[Message], timeout_ms: int) -> Op[Sequence[SendResult | Exception]]:
        """Send messages that consumers see at once."""

    def prepare(
        self, messages: Sequence[Message], timeout_ms: int, check_after_s: int | None = None
    ) -> Op[Sequence[Half | Exception]]:
        """Store half messages: the first phase. ``check_after_s``: the age before which the broker does not ask."""

    def post(self, message: Message, callback: SendCallback, *, timeout_ms: int) -> None:
        """Begin to send a message and return at once; ``callback`` is called when it has ended."""

    def decide(self, half: Any, *, commit: bool) -> None:
        """Tell the broker, one-way, what to do with a half message: the second phase. Returns at once and raises nothing."""

    def leave(self, half: Any) -> None:
        """Decide nothing here: from now on checks of this message are answered by ``answer``."""
