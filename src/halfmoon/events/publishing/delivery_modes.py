"""Which way an event goes: sent now, deferred until after the commit, prepared in two phases, or through the outbox.

Decides by the event, the local transaction and the publisher's mode; what waits is an operation (`halfmoon.effects`). What happens
when the transaction ends stands in `completion.py`. Opens nothing and waits for nothing by itself.

| event         | local transaction | two-phase                                | outbox           |
|---------------|-------------------|------------------------------------------|------------------|
| plain         | none              | sent                                     | NoTransaction    |
| plain         | another source's  | AmbiguousTransaction                     | NoTransaction    |
| plain         | active            | deferred                                 | a row            |
| transactional | active            | prepared, decided when it ends           | a row            |
| transactional | none              | NoTransaction                            | NoTransaction    |

In the outbox's mode all events are transactional. What a publisher that is not strict publishes without a transaction is sent, with
one warning. What is published ``at_once`` is sent, whatever is active.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec

from halfmoon.effects import Op, run
from halfmoon.errors import UsageError
from halfmoon.events import outbox
from halfmoon.events.checks import tokens
from halfmoon.events.databases import many_rows
from halfmoon.events.databases.database import Busy, Provider, Refused
from halfmoon.events.databases.provider import RowsOnLoop
from halfmoon.events.errors import AmbiguousTransaction, NoTransaction, PublishedBefore, PublishFailed, TransactionEnded
from halfmoon.events.event import Event
from halfmoon.events.publishing.attempts import Attempted, RetryPolicy, attempts
from halfmoon.events.publishing.completion import PUBLISHED, Decision, DeferredSend, RelayWakeUp, RowDecision
from halfmoon.events.publishing.decider import Decider
from halfmoon.events.publishing.transport import Transport
from halfmoon.events.tables import TableMissing
from halfmoon.events.tracing import span, step, trace_of
from halfmoon.events.transaction import LocalTransaction, other_block
from halfmoon.logs import listed
from halfmoon.model import Message, SendResult

_DECISIONS = "halfmoon decisions"

TOKEN_PROPERTY, TOKEN = "EVENT_CHECK", "token"
"""A half message with a token row says so: only such a row's absence proves anything."""

log = logging.getLogger("halfmoon.events")


class DeliveryMode(StrEnum):
    """How an event was delivered. Equal to its text: ``published.delivery == "sent"``."""

    SENT = "sent"
    """A broker has it, consumers see it."""
    DEFERRED = "deferred"
    """It is sent after the commit."""
    PREPARED = "prepared"
    """A broker has it as a half message; the end of the transaction decides."""
    OUTBOX = "outbox"
    """It is a row of the transaction; a relay sends it after the commit."""
    FAILED = "failed"
    """It was not sent, or nobody knows."""


class Published(msgspec.Struct, frozen=True):
    """Result of `publish`: the event's id, which way it went, the attempts made, and what the broker answered, if one was asked.

    ``error`` is why it failed, where failures are not raised.
    """

    event_id: str
    delivery: DeliveryMode
    attempts: int = 0
    result: SendResult | None = None
    error: Exception | None = None


class DeliveryRules(msgspec.Struct, frozen=True):
    """Settings of a publisher about delivery; see `halfmoon.events.Publisher`."""

    group: str
    outbox: bool = False
    strict: bool = True
    tries: RetryPolicy = RetryPolicy()
    notify: bool = False


class DeliveryModes:
    """The ways of one publisher's events. Safe to use from many threads."""

    def __init__(
        self,
        rules: DeliveryRules,
        transport: Transport,
        provider: Provider,
        decider: Decider | None = None,
        *,
        wake_relay: Callable[[], None] = lambda: None,
    ) -> None:
        """``decider``: decides half messages by token rows; None for a publisher without a database.

        ``wake_relay`` is called after commits with rows for the relay.
        """
        self.rules = rules
        self._decider = decider
        self.transport = transport
        self.provider = provider
        self._wake_relay = wake_relay
        self._warned = False

    def choose(self, event: Event, transaction: LocalTransaction | None) -> DeliveryMode:
        """Return the way of an event.

        Raises NoTransaction and AmbiguousTransaction, see the table above, PublishedBefore, and UsageError for a half message that
        is to be delayed.

        Follows DefaultMQProducerImpl.sendMessageInTransaction (RocketMQ 4.7.1), which takes the delay off a half message, for
        brokers would lose it. Differs: it is refused, not delivered too early.
        """
        if transaction is None:
            block = other_block(self.provider)
            if event.transactional or self.rules.outbox or block:
                self._without_transaction(event, block)
            return DeliveryMode.SENT
        if event.id in transaction.facts.get(PUBLISHED, ()):
            raise PublishedBefore(f"{event} was already published in this transaction: build another event to send it twice")
        if self.rules.outbox:
            return DeliveryMode.OUTBOX
        if event.transactional and event.deliver_at_ms:
            raise UsageError(
                f"{event} is transactional and delayed: a half message cannot wait, brokers drop its delay; use "
                "Publisher(mode='outbox'), whose events can, or publish it plain, with transactional=False"
            )
        return DeliveryMode.PREPARED if event.transactional else DeliveryMode.DEFERRED

    def deliver(
        self,
        deliveries: Sequence[DeliveryMode],
        events: Sequence[Event],
        messages: Sequence[Message],
        transaction: LocalTransaction | None,
        *,
        check_after_s: int | None = None,
        blocking: bool = True,
    ) -> Op[list[Published]]:
        """Carry events along their ways, all at once; return the results in their order. Half messages go first: they may fail.

        ``blocking``: statements are not awaited. Raises what `Attempted.raise_failed` raises; TransactionEnded; what the database
        raises. Nothing of the call is published then, but for events without a transaction.
        """
        published: dict[int, Published] = {}
        for delivery in (DeliveryMode.PREPARED, DeliveryMode.OUTBOX, DeliveryMode.SENT, DeliveryMode.DEFERRED):
            places = [place for place, chosen in enumerate(deliveries) if chosen is delivery]
            some, theirs = [events[place] for place in places], [messages[place] for place in places]
            if not places:
                continue
            if transaction is None:
                results = yield from self._send(some, theirs)
            elif delivery is DeliveryMode.PREPARED:
                results = yield from self._prepare(some, theirs, transaction, check_after_s, blocking=blocking)
            elif delivery is DeliveryMode.OUTBOX:
                results = yield from self._write(some, theirs, transaction, blocking=blocking)
            else:
                results = [self._defer(event, message, transaction) for event, message in zip(some, theirs, strict=True)]
            published.update(zip(places, results, strict=True))
        return [published[place] for place in range(len(events))]

    def _without_transaction(self, event: Event, block: str) -> None:
        if self.rules.strict and block and not event.transactional and not self.rules.outbox:
            raise AmbiguousTransaction(
                f"{event} would be sent at once, inside {block}, which is no transaction of this publisher's: its rollback would "
                f"not take the event back; nothing was sent. {self.provider.ways}. To send it whatever becomes of the block: "
                "publish(…, at_once=True)"
            )
        if self.rules.strict:
            known = f" ({block} is open, but does not belong to this publisher)" if block else ""
            without = "at_once=True" if block or self.rules.outbox else "transactional=False"
            raise NoTransaction(
                f"{event} needs a transaction, and none of this publisher's is open here{known}; nothing was sent. "
                f"{self.provider.ways}. To send it without a transaction: publish(…, {without})"
            )
        if not self._warned:
            self._warned = True
            log.warning(
                "%s needs a transaction, but none is known here: sent at once, as Publisher(strict=False) allows; logged "
                "once: group=%s",
                event, self.rules.group,
            )  # fmt: skip

    # ------------------------------------------------------------ the ways

    def _defer(self, event: Event, message: Message, transaction: LocalTransaction) -> Published:
        transaction.register(DeferredSend(self.transport, self.rules.tries, event, message))
        step("deferred", event)
        return Published(event.id, DeliveryMode.DEFERRED)

    def _send(self, events: Sequence[Event], messages: Sequence[Message]) -> Op[list[Published]]:
        attempted = yield from attempts(self.transport.send, events, messages, self.rules.tries, Attempted())
        for place in attempted.results:
            step("sent", events[place], attempt=attempted.made)
        attempted.raise_failed(events, "the other events were sent")
        return [
            Published(event.id, DeliveryMode.SENT, attempted.made, attempted.results[place]) for place, event in enumerate(events)
        ]

    def _prepare(
        self,
        events: Sequence[Event],
        messages: Sequence[Message],
        transaction: LocalTransaction,
        check_after_s: int | None,
        *,
        blocking: bool,
    ) -> Op[list[Published]]:
        """Write the token rows of half messages, then store the half messages, which say where their rows lie."""
        decider, home, attempted = self._decider, tokens.NOWHERE, Attempted()
        prepare = partial(self.transport.prepare, check_after_s=check_after_s)
        try:
            if decider is not None:
                home = yield from self._write_tokens(events, transaction, blocking=blocking)
                for message in messages:
                    message.properties.update({TOKEN_PROPERTY: TOKEN, **home.properties})
            with span("prepare", events[0], group=self.rules.group):
                yield from attempts(prepare, events, messages, self.rules.tries, attempted)
                attempted.raise_failed(events, "none of the call is published")
                if decider is None:
                    _still_active(transaction, events[0])
        except GeneratorExit:
            raise
        except BaseException as error:  # what was stored is not published: its row goes, so that a check finds none
            for place, half in attempted.results.items():
                self.transport.decide(half, commit=False)
                step("rolled back at once", events[place], message_id=half.message_id, decision="rollback", error=error)
            if decider is not None:
                yield from self._remove_tokens(events, transaction, error, blocking=blocking)
            raise
        published = []
        for place, (event, message) in enumerate(zip(events, messages, strict=True)):
            half, trace = attempted.results[place], trace_of(message.properties)
            step("prepared", event, message_id=half.message_id, attempt=attempted.made)
            if decider is None:
                transaction.register(Decision(self.transport, event, half, trace))
            else:
                self._await_row(decider, transaction, RowDecision(decider, event, half, trace, home))
            published.append(Published(event.id, DeliveryMode.PREPARED, attempted.made, half.result))
        return published

    def _rows(self, transaction: LocalTransaction, *, blocking: bool) -> Any:
        """Return how statements run in a transaction: one of a blocking connection blocks, on an event loop, too."""
        return self.provider.rows(transaction) if blocking or transaction.waits else RowsOnLoop(self.provider, transaction)

    def _remove_tokens(
        self, events: Sequence[Event], transaction: LocalTransaction, error: BaseException, *, blocking: bool
    ) -> Op[None]:
        """Remove token rows after an error, unless it says that the database did not take them."""
        refused = isinstance(error, TableMissing | NoTransaction) or (isinstance(error, PublishFailed) and error.in_database)
        if refused or not transaction.active:
            return
        ids = [event.id for event in events]
        try:
            yield from run(self._rows(transaction, blocking=blocking).run, *tokens.delete(ids))
        except Exception as exc:
            log.warning(
                "token rows of events that were not published could not be removed: events=%s error=%r", listed(ids, 10), exc
            )

    def _write_tokens(self, events: Sequence[Event], transaction: LocalTransaction, *, blocking: bool) -> Op[tokens.Home]:
        """Write token rows, and return where they lie: the schema may be another than that of the last transaction."""
        dialect = self.provider.dialect
        _still_active(transaction, events[0])
        values = [tokens.values(event.id, event.published_ms) for event in events]
        try:
            rows = self._rows(transaction, blocking=blocking)
            if tokens.tells_home(dialect):
                return tokens.home_found((yield from run(rows.all, *many_rows.insert(tokens.INSERT_AND_TELL, values))))
            yield from run(rows.run, *many_rows.insert(tokens.INSERT, values))
            return tokens.home_found((yield from run(rows.all, tokens.home_query(dialect), {})))
        except (Refused, Busy) as exc:
            what = f"the token row could not be written: {exc}"
            if isinstance(exc, Refused):
                what = (
                    "its token row already exists: a broker's check settled it, or another transaction published the event; let "
                    "the transaction roll back"
                )
            raise PublishFailed([event.id for event in events], what, 0, in_database=True) from exc

    def _await_row(self, decider: Decider, transaction: LocalTransaction, decision: RowDecision) -> None:
        """Ask for the row of an event when its transaction may be over; one that ended meanwhile is asked about now.

        An earlier half message of the same event, in a savepoint that was rolled back, is discarded: its row cannot be there, or
        this one's would have been refused.
        """
        decisions: dict[str, RowDecision] = transaction.facts.setdefault(_DECISIONS, {})
        if (earlier := decisions.get(decision.event_id)) is not None:
            decider.discard(earlier.question)
        decisions[decision.event_id] = decision
        try:
            transaction.register(decision)
        except UsageError:
            decider.ask(decision.question)
            raise

    def _write(
        self, events: Sequence[Event], messages: Sequence[Message], transaction: LocalTransaction, *, blocking: bool
    ) -> Op[list[Published]]:
        written = [
            outbox.write(self.provider, transaction, message, event, event.published_ms, notify=self.rules.notify)
            for event, message in zip(events, messages, strict=True)
        ]
        _still_active(transaction, events[0])
        try:
            rows = self._rows(transaction, blocking=blocking)
            for chunk in many_rows.chunks([values for _, values in written], "message"):
                yield from run(rows.run, *many_rows.insert(written[0][0], chunk))
        except (Refused, Busy) as exc:
            ids = [event.id for event in events]
            raise PublishFailed(ids, f"the outbox row could not be written: {exc}", 1, in_database=True) from exc
        for event in events:
            transaction.register(RelayWakeUp(self._wake_relay, event))
            step("written", event)
        return [Published(event.id, DeliveryMode.OUTBOX) for event in events]


def _still_active(transaction: LocalTransaction, event: Event) -> None:
    if not transaction.active:
        raise TransactionEnded(f"{event}: its local transaction ended during the publish")
