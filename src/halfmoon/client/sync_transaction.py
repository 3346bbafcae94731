"""The blocking transactional producer. Written by hand: local transactions run in the caller's own thread.

Database connections often belong to a thread. Storing and deciding run in it too, as far as they need no event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from halfmoon.client.aio_transaction import UNSURE, AsyncHalf, AsyncTransactionProducer
from halfmoon.client.core.produce.transaction_check import CheckFunction, LocalTransaction, TransactionListener, state_of
from halfmoon.client.settings import ProducerSettings
from halfmoon.client.sync import Producer
from halfmoon.effects import Op
from halfmoon.model import LocalTransactionState, Message, SendResult, TransactionSendResult
from halfmoon.runtime.drivers.threads import background

T = TypeVar("T")
COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK


class TransactionProducer(Producer):
    """Sends messages that stay half until the sender's own transaction is decided; then they are delivered, or never.

    ::

        producer = TransactionProducer(group="P_shop", nameserver="127.0.0.1:9876")

        @producer.on_check("orders")
        def was_it_committed(message):
            known = database.has(message.transaction_id)
            return LocalTransactionState.COMMIT if known else LocalTransactionState.ROLLBACK

        with producer, producer.half(Message("orders", b"paid")) as half:
            database.commit_order(half.transaction_id)

    ``check`` is a function of a message that answers for every topic. ``listener`` is an object with ``execute(message, arg)`` for
    `send_in_transaction` and ``check(message)``, which is asked where no ``check`` is given. A broker asks *any*
    member of the group about *any* of its messages, so each member must be able to answer for all. Checks run in threads of their
    own. Settings are those of `halfmoon.client.settings.TransactionSettings`, by keyword.

    Raises UsageError when the listener lacks a method.
    """

    _client: AsyncTransactionProducer

    def __init__(
        self,
        settings: ProducerSettings | None = None,
        *,
        listener: TransactionListener | None = None,
        check: CheckFunction | None = None,
        **values: Any,
    ) -> None:
        loop = background()
        client = loop.plain(AsyncTransactionProducer, settings, listener=listener, check=check, **values)
        super(Producer, self).__init__(client, loop)

    def new_id(self) -> str:
        """Return a new id for a message (`Message.msg_id`), as sending makes them."""
        return self._client.new_id()

    def on_check(self, topic: str = "*", function: CheckFunction | None = None) -> Callable[..., Any]:
        """Answer checks of a topic's half messages by ``function(message)``; may be used as a decorator.

        ``topic`` is a name or a pattern (``orders_*``); the name wins over patterns, an earlier pattern over a later one, and all
        win over the producer's ``check`` and the listener. The function returns a `LocalTransactionState`; None or an error is
        UNKNOWN, and the broker asks again. It runs in a thread of its own.
        """
        return self._client.on_check(topic, function)

    def send_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        executor: LocalTransaction | None = None,
        check_after_s: int | None = None,
        timeout_ms: int | None = None,
    ) -> TransactionSendResult:
        """Store a half message, run the local transaction in this thread, and send its outcome to the broker.

        The local transaction is ``executor(message, arg)`` where given, else the listener's ``execute``. It runs only when the
        half message is stored and every promise of the broker was kept (SEND_OK); otherwise the message is rolled back. It returns
        a `LocalTransactionState`; None is UNKNOWN. What it raises is logged, kept in the result as ``local_error`` and told to the
        broker as UNKNOWN, not raised. Do not return UNKNOWN on purpose: the broker then has to ask.

        ``check_after_s`` is the age before which the broker does not ask; ``timeout_ms`` is the budget of the half message.

        Raises:
            UsageError: no local transaction, or nobody to answer a check; nothing was sent.
            NoRoute, BrokerError, SendFailed, TooManyRequests: as `send`; the local transaction did not run.
            KeyboardInterrupt: interrupted; when the local transaction had begun, its outcome is left to the check-back.
        """
        core = self._client._core
        local = core.local(executor)
        stored = self._here(core.store(message, check_after_s=check_after_s, timeout_ms=timeout_ms), message)
        try:
            value, error = None, None
            if stored.safe:
                try:
                    outcome = local(stored.message, arg)
                    value = state_of(self._loop.call(outcome) if inspect.iscoroutine(outcome) else outcome)
                except Exception as exc:
                    error = exc
            return self._conclude(core.finish(stored, value, error))
        finally:
            core.leave(stored)

    def half(
        self,
        message: Message,
        *,
        check: CheckFunction | None = None,
        unsure: tuple[type[BaseException], ...] = UNSURE,
        check_after_s: int | None = None,
        timeout_ms: int | None = None,
    ) -> Half:
        """Return a context manager: the block runs while the message is half, and its end decides.

        Entering stores the message. A block that ends normally commits it. An exception rolls it back and goes on, except
        those that say nothing of the outcome (``unsure``, and what is no Exception, as interrupts): then nothing is sent, and the
        broker's check decides. So it does when the process is killed.

        ``check`` answers checks for the message's topic from now on, as `on_check`.

        Raises UsageError when nobody could answer a check; nothing was sent.
        """
        inner = self._client.half(message, check=check, unsure=unsure, check_after_s=check_after_s, timeout_ms=timeout_ms)
        return Half(inner, self)

    def _conclude(self, operation: Op[T]) -> T:
        """Run a second phase, also when closed meanwhile: it then fails inside, and is logged like any other failure."""
        driver = self._blocking_driver
        return self._loop.call(self._client._conclude(operation)) if driver is None else driver.run(operation)

    def _post(self, operation: Op[None]) -> None:
        """Run a second phase without waiting for anything."""
        driver = self._blocking_driver
        if driver is None:
            self._loop.soon(self._client._spawn, operation)
        else:
            driver.post(operation)

    def prepare(self, message: Message, *, check_after_s: int | None = None, timeout_ms: int | None = None) -> Half:
        """Store a half message and return it, to be decided later and elsewhere: `half` without its block.

        Raises UsageError when nobody could answer a check, what `send` raises, and HalfRolledBack when a promise of the broker was
        not kept in time.
        """
        return self.half(message, check_after_s=check_after_s, timeout_ms=timeout_ms).__enter__()

    def prepare_async(self, message: Message, *, check_after_s: int | None = None, timeout_ms: int | None = None) -> Future[Half]:
        """Begin what `prepare` does and return at once; the future gives the half message."""

        async def run() -> Half:
            return Half(await self._client.prepare(message, check_after_s=check_after_s, timeout_ms=timeout_ms), self)

        return self._loop.submit(lambda: asyncio.ensure_future(run()))


class Half:
    """One half message and the block that decides on it; made by `TransactionProducer.half`.

    At most one decision is sent: by `commit` or `rollback` inside the block, or by its end; none after `leave`.
    """

    def __init__(self, inner: AsyncHalf, producer: TransactionProducer) -> None:
        self._inner = inner
        self._producer = producer

    def __enter__(self) -> Self:
        """Store the message.

        Raises what `send` raises, and HalfRolledBack when a promise of the broker was not kept; the block does not run then.
        """
        inner = self._inner
        inner._stored_as(self._producer._here(inner._storing(), inner._message))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if (state := self._inner._verdict(error)) is not None:
            self._producer._conclude(self._inner._deciding(state, error))

    def commit(self) -> None:
        """Deliver the message; the end of the block sends nothing more. Raises UsageError when it was decided before."""
        self._producer._conclude(self._inner._deciding(COMMIT))

    def rollback(self) -> None:
        """Discard the message; the end of the block sends nothing more. Raises UsageError when it was decided before."""
        self._producer._conclude(self._inner._deciding(ROLLBACK))

    def decide(self, *, commit: bool) -> None:
        """Commit or roll back without waiting for the network, from any thread; what fails is logged, and the broker asks.

        Raises UsageError when it was decided.
        """
        self._producer._post(self._inner._deciding(COMMIT if commit else ROLLBACK))

    def leave(self) -> None:
        """Send nothing because the outcome is unknown: the broker's check decides. Raises UsageError when it was decided."""
        self._inner.leave()

    @property
    def result(self) -> SendResult:
        """Where the half message went."""
        return self._inner.result

    @property
    def transaction_id(self) -> str:
        """What a check will know the transaction by; write it into the database, in the transaction itself."""
        return self._inner.transaction_id

    @property
    def message_id(self) -> str:
        """The message's id, which consumers see."""
        return self._inner.message_id
