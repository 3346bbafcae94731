"""Transactional producers on asyncio. Thin, as `halfmoon.client.aio`; `halfmoon.client.sync_transaction` is the blocking twin."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from halfmoon.client.aio import AsyncProducer
from halfmoon.client.core.produce.transaction import StoredHalf, Transactions
from halfmoon.client.core.produce.transaction_check import CheckFunction, LocalTransaction, TransactionListener
from halfmoon.client.lifecycle import values_of
from halfmoon.client.settings import ProducerSettings, TransactionSettings, settings_of
from halfmoon.client.spans import INSTALLED, add_spans
from halfmoon.effects import Op
from halfmoon.errors import UsageError
from halfmoon.model import LocalTransactionState, Message, SendResult, TransactionSendResult
from halfmoon.runtime.drivers.asyncio_driver import Driver

__all__ = ["AsyncHalf", "AsyncTransactionProducer", "TransactionListener", "TransactionSettings"]

T = TypeVar("T")

UNSURE: tuple[type[BaseException], ...] = (TimeoutError, ConnectionError)
"""Errors after which it is unknown whether a database committed: the half message is then left to the broker's check."""


class AsyncTransactionProducer(AsyncProducer):
    """Sends messages that stay half until the sender's own transaction is decided; then they are delivered, or never.

    ::

        producer = AsyncTransactionProducer(group="P_shop", nameserver="127.0.0.1:9876")

        @producer.on_check("orders")
        async def was_it_committed(message):
            known = await database.has(message.transaction_id)
            return LocalTransactionState.COMMIT if known else LocalTransactionState.ROLLBACK

        async with producer, producer.half(Message("orders", b"paid")) as half:
            await database.commit_order(half.transaction_id)

    ``check`` is a function of a message that answers for every topic. ``listener`` is an object with ``execute(message, arg)`` for
    `send_in_transaction` and ``check(message)``, which is asked where no ``check`` is given. A broker asks *any*
    member of the group about *any* of its messages, so each member must be able to answer for all. Settings are those of
    `halfmoon.client.settings.TransactionSettings`, by keyword.

    Raises UsageError when the listener lacks a method.
    """

    _kind = TransactionSettings

    def __init__(
        self,
        settings: ProducerSettings | None = None,
        *,
        listener: TransactionListener | None = None,
        check: CheckFunction | None = None,
        **values: Any,
    ) -> None:
        checked = settings_of(TransactionSettings, {**(values_of(settings) if settings else {}), **values})
        super().__init__(checked)
        for name in ("execute", "check") if listener is not None else ():
            if not callable(getattr(listener, name, None)):
                raise UsageError(f"a listener has the methods execute and check; {listener!r} has no {name}")
        self._core = Transactions(checked, self._sender, self._instance, listener, check)
        if checked.spans and INSTALLED:
            add_spans(self._core, checked.group)

    async def _begin(self, driver: Driver) -> None:
        await super()._begin(driver)
        driver.spawn(self._core.meet_brokers(), f"producer {self.settings.group}")

    async def _conclude(self, operation: Op[T]) -> T:
        """Run a second phase, also when closed meanwhile: it then fails inside, and is logged like any other failure."""
        assert self._driver is not None
        return await self._driver.run(operation)

    def _spawn(self, operation: Op[None]) -> None:
        """Run a second phase beside everything else."""
        assert self._driver is not None
        self._driver.spawn(operation, "second phase")

    def new_id(self) -> str:
        """Return a new id for a message (`Message.msg_id`), as sending makes them. May be called from any thread."""
        return self._ids.next(time.time_ns() // 1_000_000)

    def on_check(self, topic: str = "*", function: CheckFunction | None = None) -> Callable[..., Any]:
        """Answer checks of a topic's half messages by ``function(message)``; may be used as a decorator.

        ``topic`` is a name or a pattern (``orders_*``); the name wins over patterns, an earlier pattern over a later one, and all
        win over the producer's ``check`` and the listener. The function returns a `LocalTransactionState`; None or an error is
        UNKNOWN, and the broker asks again. A plain function runs in a thread.
        """
        if function is not None:
            self._core.checkers.add(topic, function)
            return function

        def decorate(decorated: CheckFunction) -> CheckFunction:
            self._core.checkers.add(topic, decorated)
            return decorated

        return decorate

    async def send_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        executor: LocalTransaction | None = None,
        check_after_s: int | None = None,
        timeout_ms: int | None = None,
    ) -> TransactionSendResult:
        """Store a half message, run the local transaction, and send its outcome to the broker.

        The local transaction is ``executor(message, arg)`` where given, else the listener's ``execute``. It runs only when the
        half message is stored and every promise of the broker was kept (SEND_OK); otherwise the message is rolled back. It returns
        a `LocalTransactionState`; None is UNKNOWN. What it raises is logged, kept in the result as ``local_error`` and told to the
        broker as UNKNOWN, not raised. Do not return UNKNOWN on purpose: the broker then has to ask.

        ``check_after_s`` is the age before which the broker does not ask; ``timeout_ms`` is the budget of the half message.

        Raises:
            UsageError: no local transaction, or nobody to answer a check; nothing was sent.
            NoRoute, BrokerError, SendFailed, TooManyRequests: as `send`; the local transaction did not run.
            asyncio.CancelledError: cancelled; when the local transaction had begun, its outcome is left to the check-back.
        """
        return await self._run(self._core.send(message, arg, executor, check_after_s=check_after_s, timeout_ms=timeout_ms))

    def half(
        self,
        message: Message,
        *,
        check: CheckFunction | None = None,
        unsure: tuple[type[BaseException], ...] = UNSURE,
        check_after_s: int | None = None,
        timeout_ms: int | None = None,
    ) -> AsyncHalf:
        """Return a context manager: the block runs while the message is half, and its end decides.

        Entering stores the message. A block that ends normally commits it. An exception rolls it back and goes on, except
        those that say nothing of the outcome (``unsure``, and what is no Exception, as cancelling and interrupts): then nothing is
        sent, and the broker's check decides. So it does when the process is killed.

        ``check`` answers checks for the message's topic from now on, as `on_check`.

        Raises UsageError when nobody could answer a check; nothing was sent.
        """
        if check is not None:
            self._core.checkers.add(message.topic, check)
        if self._core.checkers.find(message.topic) is None:
            raise UsageError(f"nobody could answer a broker's check: set one for topic {message.topic!r} (on_check or check=)")
        return AsyncHalf(self, message, unsure, check_after_s, timeout_ms)

    async def prepare(self, message: Message, *, check_after_s: int | None = None, timeout_ms: int | None = None) -> AsyncHalf:
        """Store a half message and return it, to be decided later and elsewhere: `half` without its block.

        Raises UsageError when nobody could answer a check, what `send` raises, and HalfRolledBack when a promise of the broker was
        not kept in time.
        """
        return await self.half(message, check_after_s=check_after_s, timeout_ms=timeout_ms).__aenter__()


class AsyncHalf:
    """One half message and the block that decides on it; made by `AsyncTransactionProducer.half`.

    At most one decision is sent: by `commit` or `rollback` inside the block, or by its end; none after `leave`.
    """

    def __init__(
        self,
        producer: AsyncTransactionProducer,
        message: Message,
        unsure: tuple[type[BaseException], ...],
        check_after_s: int | None,
        timeout_ms: int | None,
    ) -> None:
        self._producer = producer
        self._core = producer._core
        self._message = message
        self._unsure = unsure
        self._limits = {"check_after_s": check_after_s, "timeout_ms": timeout_ms}
        self._stored: StoredHalf | None = None
        self._open = False
        self._entered = False

    async def __aenter__(self) -> AsyncHalf:
        """Store the message.

        Raises what `send` raises, and HalfRolledBack when a promise of the broker was not kept; the block does not run then.
        """
        self._producer._check_loop()
        self._stored_as(await self._producer._run(self._storing()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._open:
            self._producer._check_loop()
        if (state := self._verdict(error)) is not None:
            await self._producer._conclude(self._deciding(state, error))

    async def commit(self) -> None:
        """Deliver the message; the end of the block sends nothing more. Raises UsageError when it was decided before."""
        self._producer._check_loop()
        await self._producer._conclude(self._deciding(LocalTransactionState.COMMIT))

    async def rollback(self) -> None:
        """Discard the message; the end of the block sends nothing more. Raises UsageError when it was decided before."""
        self._producer._check_loop()
        await self._producer._conclude(self._deciding(LocalTransactionState.ROLLBACK))

    def leave(self) -> None:
        """Send nothing because the outcome is unknown: the broker's check decides. Raises UsageError when it was decided."""
        self._core.leave(self._close())

    def decide(self, *, commit: bool) -> None:
        """Commit or roll back without waiting for the network, from the event loop; what fails is logged, and the broker asks.

        Raises UsageError when it was decided.
        """
        self._producer._check_loop()
        self._producer._spawn(self._deciding(LocalTransactionState.COMMIT if commit else LocalTransactionState.ROLLBACK))

    # ------------------------------------------------------------ shared with the blocking twin

    def _storing(self) -> Op[StoredHalf]:
        if self._entered:
            raise UsageError("a half message is sent once: make another with half()")
        self._entered = True
        return self._core.store_safe(self._message, **self._limits)

    def _stored_as(self, stored: StoredHalf) -> None:
        self._stored, self._open = stored, True

    def _verdict(self, error: BaseException | None) -> LocalTransactionState | None:
        """Return what the end of the block decides; None: nothing, because it is decided, or left to the check-back now."""
        if not self._open:
            return None
        if error is None:
            return LocalTransactionState.COMMIT
        if isinstance(error, Exception) and not isinstance(error, self._unsure):
            return LocalTransactionState.ROLLBACK
        self.leave()
        return None

    def _deciding(self, state: LocalTransactionState, error: BaseException | None = None) -> Op[None]:
        return self._core.decide(self._close(), state, error if isinstance(error, Exception) else None)

    def _close(self) -> StoredHalf:
        if not self._open or self._stored is None:
            raise UsageError("this half message was decided, or its block has not begun")
        self._open = False
        return self._stored

    @property
    def result(self) -> SendResult:
        """Where the half message went."""
        if self._stored is None:
            raise UsageError("the half message is not stored: enter the block first")
        return self._stored.result

    @property
    def transaction_id(self) -> str:
        """What a check will know the transaction by; write it into the database, in the transaction itself."""
        return self.result.msg_id

    @property
    def message_id(self) -> str:
        """The message's id, which consumers see."""
        return self.result.msg_id
