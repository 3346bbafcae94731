"""Carries events over the client: one transactional producer a process, on its background loop. Retries nothing, decides nothing.

A repeat of an attempt keeps its id and says so (`Message.attempt`): a Halfmoon broker that has the message answers as before and
stores nothing. Apache brokers store it again; the check then settles the first one, and consumers may get the event twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from halfmoon import TransactionProducer, TransactionSettings
from halfmoon.client.aio import producer_settings
from halfmoon.client.constructors.name_servers import default_name_servers
from halfmoon.client.lifecycle import reach_of
from halfmoon.effects import Op, gather, steady
from halfmoon.errors import BrokerError, NotRunning, UsageError, broker_error
from halfmoon.events.forks import hear_of_forks
from halfmoon.events.publishing.transport import Answer, Half, SendCallback, Wait
from halfmoon.model import LocalTransactionState, Message, SendResult, SendStatus

T = TypeVar("T")

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK

TOGETHER_MAX = 256
"""Messages of one call that are under way at one time; the next ones follow when these are answered."""

CHECK_THREADS = 8
"""Checks answered side by side: each may wait for a lock of the database."""

log = logging.getLogger("halfmoon.events")


class ClientTransport:
    """A `Transport` over `TransactionProducer`; ``settings`` are those of `TransactionSettings`, by keyword.

    Made in a process that forks, it opens anew in each child. Raises what a producer with these settings raises, when it is made.
    """

    def __init__(self, group: str, nameserver: str, **settings: Any) -> None:
        # Events have spans of their own (`halfmoon.events.tracing`).
        self._settings = {"retries_max": 0, "retries_async_max": 0, "check_threads": CHECK_THREADS, "spans": False, **settings}
        self._settings |= {"group": group, "nameserver": nameserver}
        reach_of(producer_settings(TransactionSettings, self._settings))  # a mistake is refused here, not where it connects
        self._lock = threading.Lock()
        self._producer: TransactionProducer | None = None
        self._answer: Answer | None = None
        self._pid = 0
        self._closed = False
        self._posted = 0
        self._idle = threading.Condition(self._lock)
        hear_of_forks(self)

    def forked(self) -> None:
        """Replace the locks in a forked child, where no thread of the parent releases them."""
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)

    # ------------------------------------------------------------ life

    def start(self, answer: Answer) -> None:
        """Open it; from now on ``answer`` may be asked. Starting again does nothing. Raises what starting a producer raises."""
        with self._lock:
            if self._closed:
                raise NotRunning("the transport is closed")
            if self._answer is None:
                self._answer = answer
        self._open()

    def settled_by(self, settle: Callable[[], None]) -> bool:
        """Return False: consumers do not wait for anybody to look."""
        return False

    def close(self, flush_ms: int) -> None:
        """Wait at most so long for posted sends to end, hand over the decisions, and close. Closing again does nothing."""
        with self._lock:
            producer, self._closed = self._producer, True
            until = time.monotonic() + flush_ms / 1000
            while self._posted and (left := until - time.monotonic()) > 0:
                self._idle.wait(left)
            self._producer = None
        if producer is not None and self._pid == os.getpid():
            producer.close()

    def abandon(self) -> None:
        """Close without waiting, for a finalizer: takes no lock. What is under way is lost."""
        self._closed = True
        if (producer := self._producer) is not None:
            producer.close_soon()

    @property
    def has_nameserver(self) -> bool:
        """Whether there is somebody to connect to: it was given a name server, or the environment names one."""
        return bool(self._settings["nameserver"] or default_name_servers(os.environ).addresses)

    def _open(self) -> TransactionProducer:
        """Return the producer of this process, started."""
        producer = self._producer
        if producer is not None and self._pid == os.getpid():
            return producer
        with self._lock:
            if self._closed or self._answer is None:
                raise NotRunning("the transport is closed" if self._closed else "the transport is not started: call start()")
            if self._producer is None or self._pid != os.getpid():
                producer = TransactionProducer(check=self._answer, **self._settings)
                producer.start()
                self._producer, self._pid, self._posted = producer, os.getpid(), 0
            return self._producer

    def new_id(self) -> str:
        """Return a new message id."""
        return self._open().new_id()

    # ------------------------------------------------------------ operations

    def run(self, operation: Op[T], wait: Wait | None = None) -> T:
        """Drive an operation in this thread; see `Transport.run`."""
        return self._open().run(operation, wait)

    async def run_async(self, operation: Op[T]) -> T:
        """Drive an operation on the running event loop; see `Transport.run_async`."""
        return await self._open().run_async(operation)

    def send(self, messages: Sequence[Message], timeout_ms: int) -> Op[Sequence[SendResult | Exception]]:
        """Send messages in one request where a batch may hold them; else all at once, each in one of its own.

        Raises what `Producer.send` raises of a single one, and of a batch; BrokerError for a promise not kept.
        """
        sender = self._open().sender
        if len(messages) > 1 and not any(map(_key, messages)):
            try:
                sent = yield from sender.placed(sender.send_batch(messages, timeout_ms=timeout_ms))
                return list(_each(sent, len(messages)))
            except UsageError:  # they do not go together, and nothing was sent
                pass

        def one(message: Message, left_ms: int) -> Op[SendResult]:
            return _kept((yield from sender.placed(sender.send(message, key=_key(message), timeout_ms=left_ms))))

        return (yield from _together(messages, timeout_ms, one))

    def prepare(
        self, messages: Sequence[Message], timeout_ms: int, check_after_s: int | None = None
    ) -> Op[Sequence[Half | Exception]]:
        """Store half messages, all at once: brokers take no batch of them.

        Raises what `TransactionProducer.prepare` raises of a single one; for a promise not kept HalfRolledBack.
        """
        half = self._open().transactions.half
        return (
            yield from _together(
                messages, timeout_ms, lambda each, left_ms: half(each, check_after_s=check_after_s, timeout_ms=left_ms).store_safe()
            )
        )

    # ------------------------------------------------------------ without waiting

    def post(self, message: Message, callback: SendCallback, *, timeout_ms: int) -> None:
        """Begin to send a message and return at once; ``callback`` is called when it has ended, on a thread of the producer's."""
        with self._lock:
            self._posted += 1

        def ended(result: SendResult | None, error: BaseException | None) -> None:
            try:
                if result is not None:
                    _kept(result)
            except BrokerError as exc:
                result, error = None, exc
            try:
                callback(result, error)
            except Exception:
                log.exception("the callback of a send failed: error=%s", error)
            finally:
                with self._lock:
                    self._posted -= 1
                    self._idle.notify_all()

        try:
            self._open().send_async(message, ended, key=_key(message), timeout_ms=timeout_ms)
        except Exception as exc:
            ended(None, exc)

    def decide(self, half: Any, *, commit: bool) -> None:
        """Tell the broker, one-way, what to do with a half message. Returns at once; what fails is logged, and the broker asks."""
        try:
            if (producer := self._producer) is None:
                raise NotRunning("the transport is closed")
            producer.post(half.decide(COMMIT if commit else ROLLBACK))
        except Exception as exc:
            log.warning("second phase not sent, the broker will ask: event=%s reason=%s", half.message_id, exc)

    def leave(self, half: Any) -> None:
        """Decide nothing here: from now on checks of this message are answered by ``answer``."""
        try:
            half.leave()
        except Exception as exc:
            log.debug("could not be left to the check: event=%s reason=%s", half.message_id, exc)


def _together(messages: Sequence[Message], timeout_ms: int, make: Callable[[Message, int], Op[T]]) -> Op[list[T | Exception]]:
    """Run an operation for each message, and return the results, or errors, in their order. ``timeout_ms`` is for all together.

    Raises the error of a single one.
    """
    if len(messages) == 1:
        return [(yield from make(messages[0], timeout_ms))]
    outcomes: list[T | Exception] = []
    until_ms = (yield from steady()) + timeout_ms
    for first in range(0, len(messages), TOGETHER_MAX):
        left_ms = max(1, until_ms - (yield from steady()))
        outcomes += yield from gather([make(message, left_ms) for message in messages[first : first + TOGETHER_MAX]])
    return outcomes


def _each(result: SendResult, count: int) -> Iterator[SendResult]:
    """Yield the result of each message of a batch: they lie one after the other in one queue."""
    ids, places = result.msg_id.split(","), result.offset_msg_id.split(",")
    for number, msg_id in enumerate(ids):
        place = places[number] if len(places) == count else ""
        yield msgspec.structs.replace(_kept(result), msg_id=msg_id, offset_msg_id=place, queue_offset=result.queue_offset + number)


def _key(message: Message) -> str | None:
    """Return the event's key, which stands behind its id: plain messages of one key go to one queue, in their order."""
    return message.keys[1] if len(message.keys) == 2 and not isinstance(message.keys, str) else None


def _kept(result: SendResult) -> SendResult:
    if result.status is not SendStatus.SEND_OK:
        raise broker_error(result.status.value, f"stored, but the broker answered {result.status.name}", result.queue.broker_name)
    return result
