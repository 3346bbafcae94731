"""The event facade: an event is checked, turned into a message, traced, and carried along its way. Opens nothing.

What is wrong with an event is found here before anything is sent, in this order: its names, who answers checks, its transaction,
its payload and headers.
"""

from __future__ import annotations

from typing import Any

from halfmoon.errors import UsageError
from halfmoon.events.checks.checks import Checks
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.encoding.envelope import message_of
from halfmoon.events.errors import NameRefused, NoChecker, PayloadRefused, PublishFailed
from halfmoon.events.event import Event, check_code, check_id, check_name
from halfmoon.events.publishing.delivery_modes import DeliveryMode, DeliveryModes, Published
from halfmoon.events.publishing.flow import NOW, Flow
from halfmoon.events.tracing import span, step
from halfmoon.events.transaction import refuse_inherited
from halfmoon.limits import BODY_BYTES_MAX
from halfmoon.logs import listed


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
        self._body_bytes_max = body_bytes_max

    def publish(
        self,
        event: Event,
        *,
        handle: Any = None,
        check_after_s: int | None = None,
        blocking: bool = False,
        at_once: bool = False,
    ) -> Flow[Published]:
        """Publish an event. ``handle`` says which transaction; ``blocking``: who drives this waits for the network.

        ``at_once``: it belongs to no transaction.

        Raises:
            UsageError: the event cannot be published as it is; nothing was sent.
            PublishFailed: it was not sent, or nobody knows; not where failures are not to be raised.
        """
        self._check(event)
        transaction = None if at_once else self._modes.provider.current(handle)
        if transaction is None and not at_once:
            refuse_inherited(self._modes.provider)
        delivery = DeliveryMode.SENT if at_once else self._modes.choose(event, transaction)
        blocks = blocking and self._modes.provider.awaiting() is None
        if blocks and transaction is not None and not transaction.waits and delivery is not DeliveryMode.DEFERRED:
            raise UsageError(f"{event}: its local transaction runs on an event loop: await publish_async(…) instead of publish(…)")
        now_ms, _ = yield NOW
        group = self._modes.rules.group
        try:
            with span("publish", event, group=group) as made:
                message = message_of(event, self._codecs, group=group, now_ms=now_ms)
                if made is not None:
                    made.set_attribute("messaging.message.body.size", len(message.body))
                if len(message.body) > self._body_bytes_max:
                    raise PayloadRefused(f"{event}: {len(message.body)} bytes, over the {self._body_bytes_max} that were set")
                step("publish", event, decision=delivery)
                return (yield from self._modes.deliver(delivery, event, message, transaction, check_after_s=check_after_s))
        except PublishFailed as exc:
            return self._failed(event, exc)

    def declared(self, topic: str) -> None:
        """Raise NameRefused for a topic that is not one of the declared ones."""
        if self._topics is not None and topic not in self._topics:
            known = listed(sorted(self._topics), 20)
            raise NameRefused(f"topic {topic!r} was not declared: this publisher has {known}; add it to Publisher(topics=…)")

    def _check(self, event: Event) -> None:
        check_name("topic", event.topic)
        check_code(event.code)
        check_id(event.id)
        self.declared(event.topic)
        if event.transactional and not self._modes.rules.outbox and not self._checks.can_answer(event.topic, event.code):
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
