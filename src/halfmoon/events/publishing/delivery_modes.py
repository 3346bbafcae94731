"""Which way an event goes: sent now, deferred until after the commit, prepared in two phases, or through the outbox.

Decides by the event, the local transaction and the publisher's mode; operations are flows (`flow.py`). What happens when the
transaction ends stands in `completion.py`. Opens nothing and waits for nothing by itself.

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
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

import msgspec

from halfmoon.errors import UsageError
from halfmoon.events import outbox
from halfmoon.events.checks import tokens
from halfmoon.events.databases.database import Busy, Provider, Refused
from halfmoon.events.errors import AmbiguousTransaction, NoTransaction, PublishedBefore, PublishFailed, TransactionEnded
from halfmoon.events.event import Event
from halfmoon.events.publishing.attempts import RetryPolicy, attempts
from halfmoon.events.publishing.completion import Decision, DeferredSend, RelayWakeUp, RowDecision, published_in
from halfmoon.events.publishing.decider import Decider
from halfmoon.events.publishing.flow import Flow, Prepare, Send, Write
from halfmoon.events.publishing.transport import Prepared, Transport
from halfmoon.events.tracing import span, step, trace_of
from halfmoon.events.transaction import LocalTransaction, other_block
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
    """What `publish` returns: the event's id, which way it went, the attempts made, and what the broker answered, if one was asked.

    ``error`` is why it failed, where failures are not raised.
    """

    event_id: str
    delivery: DeliveryMode
    attempts: int = 0
    result: SendResult | None = None
    error: Exception | None = None


class DeliveryRules(msgspec.Struct, frozen=True):
    """What a publisher says of its ways; see `halfmoon.events.Publisher`."""

    group: str
    outbox: bool = False
    strict: bool = True
    tries: RetryPolicy = RetryPolicy()


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
        """Return the way of an event. Raises NoTransaction and AmbiguousTransaction, see the table above, PublishedBefore, and
        UsageError for a half message that is to be delayed.

        Follows DefaultMQProducerImpl.sendMessageInTransaction (RocketMQ 4.7.1), which takes the delay off a half message, for
        brokers would lose it. Differs: it is refused, not delivered too early.
        """
        if transaction is None:
            block = other_block(self.provider)
            if event.transactional or self.rules.outbox or block:
                self._without_transaction(event, block)
            return DeliveryMode.SENT
        if published_in(transaction, event):
            raise PublishedBefore(f"{event} was already published in this transaction: build another event to send it twice")
        if self.rules.outbox:
            return DeliveryMode.OUTBOX
        if event.transactional and event.deliver_at_ms:
            raise UsageError(
                f"{event} is transactional and delayed: a half message cannot wait, brokers drop its delay; use "
                "Publisher(mode='outbox'), whose events can, or publish it as a plain event"
            )
        return DeliveryMode.PREPARED if event.transactional else DeliveryMode.DEFERRED

    def deliver(
        self,
        delivery: DeliveryMode,
        event: Event,
        message: Message,
        transaction: LocalTransaction | None,
        *,
        check_after_s: int | None = None,
    ) -> Flow[Published]:
        """Carry an event along a way.

        Raises what `attempts` raises; TransactionEnded; what the database raises.
        """
        if transaction is None:
            return (yield from self._send(event, message))
        if delivery is DeliveryMode.PREPARED:
            return (yield from self._prepare(event, message, transaction, check_after_s))
        if delivery is DeliveryMode.OUTBOX:
            return (yield from self._write(event, message, transaction))
        transaction.register(DeferredSend(self.transport, self.rules.tries, _known(event), message))
        step("deferred", event)
        return Published(event.id, DeliveryMode.DEFERRED)

    def _without_transaction(self, event: Event, block: str) -> None:
        if self.rules.strict and block and not event.transactional and not self.rules.outbox:
            raise AmbiguousTransaction(
                f"{event} would be sent at once, inside {block}, which is no transaction of this publisher's: its rollback would "
                f"not take the event back; nothing was sent. {self.provider.ways}. To send it whatever becomes of the block: "
                "publish(…, at_once=True)"
            )
        if self.rules.strict:
            known = f" ({block} is open, and is none of this publisher's)" if block else ""
            raise NoTransaction(
                f"{event} needs a transaction, and none is certain here{known}; nothing was sent. {self.provider.ways}. "
                f"To send it without a transaction: publish(…, at_once=True)"
            )
        if not self._warned:
            self._warned = True
            log.warning(
                "%s needs a transaction, but none is known here: sent at once, as Publisher(strict=False) allows; logged "
                "once: group=%s",
                event, self.rules.group,
            )  # fmt: skip

    # ------------------------------------------------------------ the ways

    def _send(self, event: Event, message: Message) -> Flow[Published]:
        result, made = yield from attempts(lambda attempt, left_ms: Send(message, attempt, left_ms), event, self.rules.tries)
        step("sent", event, attempt=made)
        return Published(event.id, DeliveryMode.SENT, made, result)

    def _prepare(self, event: Event, message: Message, transaction: LocalTransaction, check_after_s: int | None) -> Flow[Published]:
        """Store the half message, then write the token row by which it is decided: in this order."""
        decider = self._decider
        if decider is not None:
            self.provider.rows(transaction)  # raises for a transaction that can take no row, before anything is sent
            message.properties[TOKEN_PROPERTY] = TOKEN
        with span("prepare", event, group=self.rules.group):
            prepared, made = yield from attempts(
                lambda attempt, left_ms: Prepare(message, attempt, left_ms, check_after_s), event, self.rules.tries
            )
        step("prepared", event, message_id=prepared.message_id, attempt=made)
        try:
            _still_active(transaction, event)
            if decider is not None:
                yield Write(self.provider, transaction, tokens.INSERT, tokens.values(event.id, event.published_ms))
        except Exception as exc:
            self._undo(prepared, event, exc)
            if isinstance(exc, Refused):
                what = "its token row already exists: a broker's check settled it, or another transaction published the event"
                raise PublishFailed(event.id, f"{what}; let the transaction roll back", made, in_database=True) from exc
            if isinstance(exc, Busy):
                raise PublishFailed(event.id, f"the token row could not be written: {exc}", made, in_database=True) from exc
            raise
        except BaseException:  # cancelled or interrupted: whether the row was written, the database knows
            if decider is not None:
                decider.ask(decider.watch(_known(event), prepared, trace_of(message.properties)))
            raise
        trace = trace_of(message.properties)
        if decider is None:
            transaction.register(Decision(self.transport, _known(event), prepared, trace))
        else:
            self._await_row(decider, transaction, RowDecision(decider, _known(event), prepared, trace))
        return Published(event.id, DeliveryMode.PREPARED, made, prepared.result)

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

    def _undo(self, prepared: Prepared, event: Event, error: BaseException) -> None:
        self.transport.decide(prepared, commit=False)
        step("rolled back at once", event, message_id=prepared.message_id, decision="rollback", error=error)

    def _write(self, event: Event, message: Message, transaction: LocalTransaction) -> Flow[Published]:
        statement, values = outbox.write(self.provider, transaction, message, event, event.published_ms)
        _still_active(transaction, event)
        try:
            yield Write(self.provider, transaction, statement, values)
        except (Refused, Busy) as exc:
            raise PublishFailed(event.id, f"the outbox row could not be written: {exc}", 1, in_database=True) from exc
        transaction.register(RelayWakeUp(self._wake_relay, _known(event)))
        step("written", event)
        return Published(event.id, DeliveryMode.OUTBOX)


def _known(event: Event) -> Event:
    """What is kept of an event until its transaction ends: all but the payload and its headers."""
    return replace(event, payload=None, headers={})


def _still_active(transaction: LocalTransaction, event: Event) -> None:
    if not transaction.active:
        raise TransactionEnded(f"{event}: its local transaction ended during the publish")
