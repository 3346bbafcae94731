"""Blocking transactional producers. Generated from `halfmoon.client.aio_transaction`; do not edit.

Local transactions run in the caller's own thread, for database connections often belong to one. Storing and deciding run in it too,
as far as they need no event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, Unpack

from halfmoon.client.aio_transaction import AsyncTransactionProducer
from halfmoon.client.constructors.options import TransactionArguments
from halfmoon.client.core.produce.transaction import UNSURE, Limits, OpenHalf, Transactions
from halfmoon.client.core.produce.transaction_check import CheckFunction, LocalTransaction, TransactionListener
from halfmoon.client.settings import ProducerSettings
from halfmoon.client.sync import Producer
from halfmoon.effects import Op
from halfmoon.model import LocalTransactionState, Message, SendResult, TransactionSendResult
from halfmoon.runtime.drivers.threads import background


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
    member of the group about *any* of its messages, so each member must be able to answer for all. Settings are those of
    `halfmoon.client.settings.TransactionSettings`, by keyword.

    Raises UsageError when the listener lacks a method.
    """

    _client: AsyncTransactionProducer

    transactions: Transactions
    """Both phases as operations."""

    def __init__(
        self,
        settings: ProducerSettings | None = None,
        *,
        listener: TransactionListener | None = None,
        check: CheckFunction | None = None,
        **values: Unpack[TransactionArguments],
    ) -> None:
        loop = background()
        super(Producer, self).__init__(
            loop.plain(AsyncTransactionProducer, settings, listener=listener, check=check, **values), loop
        )
        self.transactions = self._client.transactions

    def new_id(self) -> str:
        """Return a new id for a message (`Message.msg_id`), as sending makes them. May be called from any thread."""
        return self.sender.ids.next(time.time_ns() // 1_000_000)

    def on_check(self, topic: str = "*", function: CheckFunction | None = None) -> Callable[..., Any]:
        """Answer checks of a topic's half messages by ``function(message)``; may be used as a decorator.

        ``topic`` is a name or a pattern (``orders_*``); the name wins over patterns, an earlier pattern over a later one, and all
        win over the producer's ``check`` and the listener. The function returns a `LocalTransactionState`; None or an error is
        UNKNOWN, and the broker asks again. A plain function runs in a thread.
        """
        if function is not None:
            self.transactions.checkers.add(topic, function)
            return function

        def decorate(decorated: CheckFunction) -> CheckFunction:
            self.transactions.checkers.add(topic, decorated)
            return decorated

        return decorate

    def send_in_transaction(
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
            KeyboardInterrupt: interrupted; when the local transaction had begun, its outcome is left to the check-back.
        """
        return self.run(self.transactions.send(message, arg, executor, check_after_s=check_after_s, timeout_ms=timeout_ms))

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
        those that say nothing of the outcome (``unsure``, and what is no Exception, as cancelling and interrupts): then nothing is
        sent, and the broker's check decides. So it does when the process is killed.

        ``check`` answers checks for the message's topic from now on, as `on_check`.

        Raises UsageError when nobody could answer a check; nothing was sent.
        """
        limits = Limits(check_after_s=check_after_s, timeout_ms=timeout_ms)
        return Half(self, self.transactions.half(message, check=check, unsure=unsure, **limits))

    def prepare(self, message: Message, *, check_after_s: int | None = None, timeout_ms: int | None = None) -> Half:
        """Store a half message and return it, to be decided later and elsewhere: `half` without its block.

        Raises UsageError when nobody could answer a check, what `send` raises, and HalfRolledBack when a promise of the broker was
        not kept in time.
        """
        return self.half(message, check_after_s=check_after_s, timeout_ms=timeout_ms).__enter__()

    def prepare_async(self, message: Message, *, check_after_s: int | None = None, timeout_ms: int | None = None) -> Future[Half]:
        """Begin what `prepare` does and return at once; the future gives the half message."""
        return self.submit(self.half(message, check_after_s=check_after_s, timeout_ms=timeout_ms).entering())


class Half:
    """One half message and the block that decides on it; made by `TransactionProducer.half`.

    At most one decision is sent: by `commit` or `rollback` inside the block, or by its end; none after `leave`.
    """

    def __init__(self, producer: TransactionProducer, half: OpenHalf) -> None:
        self._producer, self._half = producer, half

    def __enter__(self) -> Self:
        """Store the message.

        Raises what `send` raises, and HalfRolledBack when a promise of the broker was not kept; the block does not run then.
        """
        return self._producer.run(self.entering())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if (state := self._half.verdict(error)) is not None:
            self._producer.conclude(self._half.decide(state, error if isinstance(error, Exception) else None))

    def commit(self) -> None:
        """Deliver the message; the end of the block sends nothing more. Raises UsageError when it was decided before."""
        self._producer.conclude(self._half.decide(LocalTransactionState.COMMIT))

    def rollback(self) -> None:
        """Discard the message; the end of the block sends nothing more. Raises UsageError when it was decided before."""
        self._producer.conclude(self._half.decide(LocalTransactionState.ROLLBACK))

    def decide(self, *, commit: bool) -> None:
        """Commit or roll back without waiting for the network; what fails is logged, and the broker asks.

        Raises UsageError when it was decided.
        """
        self._producer.post(self._half.decide(LocalTransactionState.COMMIT if commit else LocalTransactionState.ROLLBACK))

    def leave(self) -> None:
        """Send nothing because the outcome is unknown: the broker's check decides. Raises UsageError when it was decided."""
        self._half.leave()

    def entering(self) -> Op[Self]:
        """Return the operation that stores the message, as entering the block does."""
        yield from self._half.store_safe()
        return self

    @property
    def result(self) -> SendResult:
        """Where the half message went."""
        return self._half.result

    @property
    def transaction_id(self) -> str:
        """Identity by which a check will know the transaction; write it into the database, in the transaction itself."""
        return self._half.message_id

    @property
    def message_id(self) -> str:
        """The message's id, which consumers see."""
        return self._half.message_id
