"""End of published events with their local transaction: sent, decided, or handed to the relay. Raises nothing.

Runs in the context that owns the transaction, and never after a fork in the child, for the transaction is the parent's.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from halfmoon.events.checks.tokens import NOWHERE, Home
from halfmoon.events.event import Event
from halfmoon.events.publishing.attempts import Attempted, RetryPolicy, attempts, worth_repeating
from halfmoon.events.publishing.decider import Decider
from halfmoon.events.publishing.transport import Half, Transport
from halfmoon.events.tracing import span, step
from halfmoon.events.transaction import LocalTransaction, Status, Synchronization
from halfmoon.model import Message, SendResult

PUBLISHED = "halfmoon published"
"""Fact of a transaction: the ids of the events that it has, without those of savepoints that were rolled back."""

_DEADLINE = "halfmoon deferred deadline"

log = logging.getLogger("halfmoon.events")


class Completion(Synchronization):
    """Act that one published event waits for. As long as its transaction has it, the same event is not published there again."""

    def __init__(self, event: Event) -> None:
        self._event = replace(event, payload=None, headers={})  # all that is needed of it until then
        self._transaction: LocalTransaction | None = None
        self._pid = os.getpid()

    def begin(self, transaction: LocalTransaction) -> None:
        """Remember whose end it waits for, and note the event's id there."""
        self._transaction = transaction
        transaction.facts.setdefault(PUBLISHED, set()).add(self._event.id)

    def after_completion(self, status: Status) -> None:
        """Forget the id: a savepoint that is rolled back has not published it."""
        if self._transaction is not None:
            self._transaction.facts[PUBLISHED].discard(self._event.id)


class DeferredSend(Completion):
    """A plain event that waits for the commit. It is dropped when that does not come, or when nobody knows.

    All of one transaction share one time limit for those that are waited for; the others are sent without waiting.
    """

    rank = 0

    def __init__(self, transport: Transport, tries: RetryPolicy, event: Event, message: Message) -> None:
        super().__init__(event)
        self._transport, self._tries, self._message = transport, tries, message
        self._posts = 0

    def after_commit(self) -> None:
        """Send it. A failure is logged, whole enough to find the event."""
        if self._pid != os.getpid():
            return
        try:
            left_ms = self._left_ms()
            if left_ms > 0:
                self._send(left_ms)
            else:
                self._post()
        except Exception as exc:
            self._lost(exc)

    def after_completion(self, status: Status) -> None:
        """Drop it where the transaction did not commit."""
        super().after_completion(status)
        if status is Status.ROLLED_BACK:
            step("dropped", self._event, decision="rollback", level=logging.DEBUG)
        elif status is Status.UNKNOWN:
            self._lost("it is unknown whether its transaction committed; transactional events and the outbox survive that")

    def _left_ms(self) -> int:
        """How long may still be waited; 0 on an event loop."""
        transaction = self._transaction
        if transaction is None or not transaction.waits:
            return 0
        steady = time.monotonic()
        until = transaction.facts.setdefault(_DEADLINE, steady + self._tries.timeout_ms / 1000)
        return max(0, int((until - steady) * 1000))

    def _send(self, left_ms: int) -> None:
        message, tries = self._message, RetryPolicy(self._tries.tries_max, left_ms)
        attempted = self._transport.run(attempts(self._transport.send, [self._event], [message], tries, Attempted()))
        attempted.raise_failed([self._event], "")
        step("sent", self._event, attempt=attempted.made)

    def _post(self) -> None:
        self._posts += 1
        message = msgspec.structs.replace(self._message, attempt=self._posts)
        self._transport.post(message, self._posted, timeout_ms=self._tries.timeout_ms)

    def _posted(self, result: SendResult | None, error: BaseException | None) -> None:
        if error is None:
            step("sent", self._event, attempt=self._posts)
        elif self._posts <= self._tries.tries_max and worth_repeating(error):
            log.warning("publish is retried: %s attempt=%d reason=%s", self._event, self._posts + 1, error)
            self._post()
        else:
            self._lost(error)

    def _lost(self, error: BaseException | str) -> None:
        event = self._event
        log.error(
            "event lost after commit: event=%s topic=%s code=%s key=%s group=%s reason=%s",
            event.id, event.topic, event.code, event.key, event.group, error,
        )  # fmt: skip


class RowDecision(Completion):
    """A half message that its token row decides. Whatever is seen of the transaction's end is a reason to ask for the row."""

    rank = 1

    def __init__(
        self, decider: Decider, event: Event, half: Half, trace: Mapping[str, str] | None = None, home: Home = NOWHERE
    ) -> None:
        super().__init__(event)
        self.event_id, self.question = event.id, decider.watch(event, half, trace, home)
        self._decider = decider

    def after_completion(self, status: Status) -> None:
        """Have the row asked for."""
        super().after_completion(status)
        self._decider.ask(self.question, self._transaction)


class Decision(Completion):
    """A half message without a token row, of a `local_transaction`: the end of its block decides.

    When nobody knows the end, nothing is sent: the broker asks.
    """

    rank = 1

    def __init__(self, transport: Transport, event: Event, half: Half, trace: Mapping[str, str] | None = None) -> None:
        super().__init__(event)
        self._transport, self._half, self._trace = transport, half, trace

    def after_completion(self, status: Status) -> None:
        """Tell the broker, one-way; a failure is the check-back's to mend.

        An unknown end sends no rollback: that could take back what was committed.
        """
        super().after_completion(status)
        if self._pid != os.getpid():
            return
        half, event = self._half, self._event
        with span("decide", event, group=event.group, carrier=self._trace):
            if status is Status.UNKNOWN:
                self._transport.leave(half)
                step("left to the check", event, message_id=half.message_id, decision="unknown", level=logging.WARNING)
                return
            commit = status is Status.COMMITTED
            self._transport.decide(half, commit=commit)
            decision, level = ("commit", logging.INFO) if commit else ("rollback", logging.WARNING)
            step("decided", event, message_id=half.message_id, decision=decision, level=level)


class RelayWakeUp(Completion):
    """Tells the relay of this process that there is a row for it."""

    rank = 0

    def __init__(self, wake: Callable[[], None], event: Event) -> None:
        super().__init__(event)
        self._wake = wake

    def after_commit(self) -> None:
        """Wake the relay."""
        self._wake()
