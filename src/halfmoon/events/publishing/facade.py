"""The event facade: an event is checked, turned into a message, traced, and carried along its way. Opens nothing.

What is wrong with an event is found here before anything is sent, in this order: its names, who answers checks, its transaction,
its payload and headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from halfmoon.effects import Now, Op
from halfmoon.errors import UsageError
from halfmoon.events.checks.checks import Checks
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.encoding.envelope import message_of
from halfmoon.events.errors import NameRefused, NoChecker, PayloadRefused, PublishedBefore, PublishFailed
from halfmoon.events.event import Event, check_code, check_id, check_name
from halfmoon.events.publishing.delivery_modes import DeliveryMode, DeliveryModes, Published
from halfmoon.events.tracing import span, step
from halfmoon.events.transaction import LocalTransaction, refuse_inherited
from halfmoon.limits import BODY_BYTES_MAX
from halfmoon.logs import listed
from halfmoon.model import Message

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class Facade:
    """Publishes the events of one publisher. ``topics``: those declared; None: any. Safe to use from many threads."""

    def __init__(
        self,
        modes: DeliveryModes,
        checks: Checks,
        codecs: Codecs,
        *,
        topics: frozenset[str] | None,
        raise_on_failure: bool,
        body_bytes_max: int = BODY_BYTES_MAX,
    ) -> None:
        self._modes = modes
        self._checks = checks
        self._codecs = codecs
        self._topics = topics
        self._raise_on_failure = raise_on_failure
        self.body_bytes_max = body_bytes_max

    def publish(
        self,
        event: Event,
        *,
        handle: Any = None,
        check_after_s: int | None = None,
        blocking: bool = False,
        at_once: bool = False,
    ) -> Op[Published]:
        """Publish an event. ``handle`` says which transaction; ``blocking``: who drives this waits for the network.

        ``at_once``: it belongs to no transaction.

        Raises:
            UsageError: the event cannot be published as it is; nothing was sent.
            PublishFailed: it was not sent, or nobody knows; not where failures are not to be raised.
        """
        transaction, deliveries = self._choose([event], handle, blocking=blocking, at_once=at_once)
        now_ms: int = yield Now()
        try:
            with span("publish", event, group=self._modes.rules.group) as made:
                message = self._message(event, deliveries[0], now_ms, made)
                done = yield from self._modes.deliver(
                    deliveries, [event], [message], transaction, check_after_s=check_after_s, blocking=blocking
                )
                return done[0]
        except PublishFailed as exc:
            return self._failed(event, exc)

    def publish_many(
        self,
        events: Sequence[Event],
        *,
        handle: Any = None,
        check_after_s: int | None = None,
        blocking: bool = False,
        at_once: bool = False,
    ) -> Op[list[Published]]:
        """Publish events, all at once, as `publish` does with one; return the results in their order.

        Raises UsageError also for one that stands twice among them, and PublishFailed whatever they say of failures.
        """
        if not events:
            return []
        if len({event.id for event in events}) < len(events):
            raise PublishedBefore("the same event stands twice among those to be published: build another event to send it twice")
        transaction, deliveries = self._choose(events, handle, blocking=blocking, at_once=at_once)
        now_ms: int = yield Now()
        messages = []
        for event, delivery in zip(events, deliveries, strict=True):
            with span("publish", event, group=self._modes.rules.group) as made:
                messages.append(self._message(event, delivery, now_ms, made))
        return (
            yield from self._modes.deliver(
                deliveries, events, messages, transaction, check_after_s=check_after_s, blocking=blocking
            )
        )

    def _choose(
        self, events: Sequence[Event], handle: Any, *, blocking: bool, at_once: bool
    ) -> tuple[LocalTransaction | None, list[DeliveryMode]]:
        """Return the transaction that is meant, None for none, for certain, and the way of each event.

        Raises UsageError for an event that is wrong, and where the network is to be waited for in a transaction of an event loop.
        """
        for event in events:
            self._check(event, at_once=at_once)
        if at_once:
            return None, [DeliveryMode.SENT] * len(events)
        provider = self._modes.provider
        transaction = provider.current(handle)
        if transaction is None:
            refuse_inherited(provider)
        deliveries = [self._modes.choose(event, transaction) for event in events]
        waits = any(delivery is not DeliveryMode.DEFERRED for delivery in deliveries)
        if waits and blocking and transaction is not None and not transaction.waits and provider.awaiting() is None:
            raise UsageError(
                f"{events[0]}: its local transaction runs on an event loop: await publish_async(…) instead of publish(…)"
            )
        return transaction, deliveries

    def _message(self, event: Event, delivery: DeliveryMode, now_ms: int, made: Span | None) -> Message:
        """Return the message of an event, and note its size in the span that was made."""
        message = message_of(event, self._codecs, group=self._modes.rules.group, now_ms=now_ms)
        if made is not None:
            made.set_attribute("messaging.message.body.size", len(message.body))
        if len(message.body) > self.body_bytes_max:
            raise PayloadRefused(f"{event}: {len(message.body)} bytes, over the {self.body_bytes_max} that were set")
        step("publish", event, decision=delivery)
        return message

    def declared(self, topic: str) -> None:
        """Raise NameRefused for a topic that is not one of the declared ones."""
        if self._topics is not None and topic not in self._topics:
            known = listed(sorted(self._topics), 20)
            raise NameRefused(f"topic {topic!r} was not declared: this publisher has {known}; add it to Publisher(topics=…)")

    def _check(self, event: Event, *, at_once: bool) -> None:
        check_name("topic", event.topic)
        check_code(event.code)
        check_id(event.id)
        self.declared(event.topic)
        unanswered = self._checks.provider is None and self._checks.function(event.topic, event.code) is None
        if unanswered and event.transactional and not at_once and not self._modes.rules.outbox:
            raise NoChecker(
                f"{event} is transactional, and no broker's check could be answered: give the publisher the database "
                f"(session=…), or decorate a function with @check({event.topic!r}, {event.code!r})"
            )

    def _failed(self, event: Event, error: PublishFailed) -> Published:
        """Raise, or tell it in the result where the event or its publisher wants that.

        What the database refused is always raised: the transaction cannot go on as if nothing had been.
        """
        step("not published", event, attempt=error.attempts, error=error)
        wanted = self._raise_on_failure if event.raise_on_failure is None else event.raise_on_failure
        if wanted or error.in_database:
            raise error
        return Published(event.id, DeliveryMode.FAILED, error.attempts, error=error)
