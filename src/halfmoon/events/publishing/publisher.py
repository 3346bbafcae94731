"""The publisher: what a service declares, and the one call that publishes. The outermost of four layers.

publisher (declaration, this file) → `facade` (checks, conversion, tracing) → `delivery_modes` (at once, after the commit, in two
phases, through the outbox; `attempts` repeats, `completion` decides) → `transport` (one attempt). A publish is one operation, which
the transport drives; nothing here waits by itself.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Self, TypedDict, TypeVar, Unpack

from halfmoon.client.constructors.options import TransactionOptions
from halfmoon.effects import Op
from halfmoon.errors import NotRunning, UsageError
from halfmoon.events.checks.checks import Checks
from halfmoon.events.checks.tokens import TokenRetention, create_tables, require
from halfmoon.events.databases.database import Provider
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.event import Event, check_code, check_name, check_whole, due_ms
from halfmoon.events.forks import hear_of_forks
from halfmoon.events.local_block import LOCAL
from halfmoon.events.outbox.relay import Relay, RelaySettings
from halfmoon.events.publishing.arguments import (
    check_flags,
    checked_after_s,
    codecs_of,
    declared_topics,
    is_outbox,
    is_transactional,
    provider_of,
    relay_settings_of,
    transport_of,
)
from halfmoon.events.publishing.attempts import RetryPolicy
from halfmoon.events.publishing.connection import Connection
from halfmoon.events.publishing.decider import Decider
from halfmoon.events.publishing.delivery_modes import DeliveryMode, DeliveryModes, DeliveryRules, Published
from halfmoon.events.publishing.facade import Facade
from halfmoon.events.tables import OUTBOX, SENT, TOKENS, TableMissing
from halfmoon.events.typed import required_type_of, type_of
from halfmoon.limits import BODY_BYTES_MAX

__all__ = ["DeliveryMode", "Published", "Publisher"]

EVENTS_MAX = 4_096
"""Events of one `Publisher.publish_many`: databases take some 30,000 values in one statement."""

FLUSH_AT_EXIT_MS = 1_000
"""How long the end of the process waits for decisions and sends of a publisher that was not closed."""

log = logging.getLogger("halfmoon.events")

_Check = TypeVar("_Check", bound=Callable[..., Any])


class Publisher:
    """Publishes the events of one service, a producer group.

    ::

        events = Publisher(group="P_shop", nameserver="127.0.0.1:9876", session=Session)  # a SQLAlchemy sessionmaker

        with Session.begin() as session:
            session.add(order)
            events.publish("TP_ORDER", "EC_PAID", {"order_id": 42})

    ``session``: a SQLAlchemy sessionmaker, async_sessionmaker, Session class, scoped_session or Engine whose transactions count.
    ``bind``: the engine of the tables of events, for sessions that choose one for each statement. ``schema``: theirs; None: the
    one in which the database finds them (``search_path``), or to which a ``schema_translate_map`` leads. ``provider``: another
    `Provider` (`halfmoon.events.django.provider()`, `halfmoon.events.dbapi.…`); neither: only transactions of
    `halfmoon.events.local_transaction` count. All publishers of a group use one database, for any of them is asked about the
    events of all. An event belongs to the session that is named (``publish(…, session=…)``, `bound_to`), or to the one of this
    database that is open in this context, also before its first statement. ``topics``: the topics it may publish to; None: any.
    ``mode``: ``"two-phase"``, or ``"outbox"``: every event is written into a table of its transaction and sent after it by a
    relay, which runs in this process unless ``relay=False``, set as ``relay=RelaySettings(…)`` says
    (`halfmoon.events.outbox.relay`). ``notify``: whether, without a relay here, PostgreSQL tells those of other processes of a
    commit; False for transactions that SQL text prepares (``PREPARE TRANSACTION``). ``default``: what events are that do not say
    whether they are transactional, ``"plain"`` or ``"transactional"``; None: transactional with a database, plain without one.
    ``tries_max``: further attempts of a publish, all within ``timeout_ms``. ``check_after_s``: the age before which brokers do
    not ask; give it the longest time that a transaction takes. ``strict=False``: a transactional event, or one for the outbox,
    whose transaction is not known is sent at once, with one warning, instead of being refused. ``raise_on_failure``: whether
    `publish` raises when an event could not be sent. ``transport``: a `MemoryBus`, or another `Transport`, instead of a broker.
    ``lazy``: connect with the first use only. Further settings are those of `TransactionSettings`, by keyword.

    Connects in the background as soon as it is made, so that brokers can ask it before it publishes; without a broker it warns
    once and goes on trying. The first publish, or `start`, starts the relay and the removal of old rows: until then it asks the
    database only to answer a check. May be shared by threads and event loops. One that was made, or even used, before a fork
    connects anew in the child; a transaction that is open at the fork stays the parent's. One that is dropped unused is closed.

    Raises UsageError for arguments that do not go together, SettingError for a setting that is unknown.
    """

    _relay: Relay | None = None
    _retention: TokenRetention | None = None

    def __init__(
        self,
        group: str,
        nameserver: str = "",
        *,
        session: Any = None,
        bind: Any = None,
        schema: str | None = None,
        provider: Provider | None = None,
        topics: Collection[str] | None = None,
        mode: str = "two-phase",
        default: str | None = None,
        relay: bool | RelaySettings = True,
        notify: bool = True,
        tries_max: int = 2,
        timeout_ms: int = 3_000,
        check_after_s: int | None = None,
        strict: bool = True,
        raise_on_failure: bool = True,
        codecs: Codecs | None = None,
        transport: Any = None,
        lazy: bool = False,
        **settings: Unpack[TransactionOptions],
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name not in ("self", "settings")}
        check_flags(strict=strict, raise_on_failure=raise_on_failure, notify=notify, lazy=lazy)
        self.group, self.codecs, self.topics = check_name("group", group), codecs_of(codecs), declared_topics(topics)
        self.provider = provider_of(session, provider, bind, schema)
        has_database = self.provider is not LOCAL
        self._outbox = is_outbox(mode, has_database=has_database)
        self._transactional = is_transactional(default, has_database=has_database)
        self._check_after_s = checked_after_s(check_after_s)
        self.transport = transport_of(transport, group, nameserver, settings, inspect.signature(Publisher).parameters)
        rules = DeliveryRules(group, self._outbox, strict, RetryPolicy(tries_max, timeout_ms), notify and relay is False)
        self._decider = Decider(self.provider, self.transport) if has_database else None
        modes = DeliveryModes(rules, self.transport, self.provider, self._decider, wake_relay=self._wake_relay)
        self._checks = Checks(self.codecs, self.provider if has_database else None)
        largest = check_whole("body_bytes_max", settings.get("body_bytes_max", BODY_BYTES_MAX), 1, BODY_BYTES_MAX)
        self._facade = Facade(
            modes, self._checks, self.codecs, topics=self.topics, raise_on_failure=raise_on_failure, body_bytes_max=largest
        )
        self._relay_settings = relay_settings_of(relay) if self._outbox else None
        self._lock, self._started, self._closed = threading.Lock(), False, False
        hear_of_forks(self)
        self._connection = Connection(self.transport, self._checks.answer, group, lazy=lazy, is_own=transport is None)

    # ------------------------------------------------------------ declarations

    def check(self, topic: str = "*", code: str = "*") -> Callable[[_Check], _Check]:
        """Have a function ``check(event, context)`` answer brokers' checks of a topic and code; a decorator.

        Returning is commit, `context.set_rollback_only()` and returning is rollback, an exception leaves it undecided: raise when
        you cannot tell, for the transaction may still be open. The most exact declaration is asked. It must look at the data that
        the transaction wrote. A coroutine function runs on an event loop of its own. Raises UsageError for a second one.
        """
        if callable(topic):
            raise UsageError("@events.check(topic, code) takes a topic and a code: write @events.check() to answer for all")
        if topic != "*":
            self._facade.declared(topic)

        def keep(function: _Check) -> _Check:
            self._checks.add(topic, code, function)
            return function

        return keep

    def create_tables(self) -> None:
        """Make the tables of events in the publisher's database, where they are not there yet."""
        create_tables(self.provider, (TOKENS, OUTBOX, SENT))

    # ------------------------------------------------------------ publishing

    def bound_to(self, session: Any) -> BoundEvents:
        """Return an object that publishes in the transaction of one session or connection, from whatever thread or task.

        For what hands sessions around, such as a dependency of FastAPI: the session is known for certain, whoever opened it.
        """
        return BoundEvents(self, session)

    def event(self, topic: str | object, code: str | None = None, payload: Any = None, **fields: Any) -> Event:
        """Build an event with an id, to be filled and given to `publish`: of a topic and code, or of an object of a typed event.

        ``fields`` are those of `Event`.
        """
        if not self._started:
            self._open()
        event = self._built(topic, code, payload, fields)
        check_code(event.code)
        self._facade.declared(check_name("topic", event.topic))
        return event

    def _built(self, topic: str | object, code: str | None, payload: Any, fields: dict[str, Any]) -> Event:
        """Return a new event. Names are checked later. Raises UsageError for an object that is no event."""
        if not isinstance(topic, str) and (code is None or type_of(type(topic))):
            declared = required_type_of(type(topic))
            if code is not None or payload is not None:
                raise UsageError(f"{type(topic).__qualname__} says its topic and code, and is the payload: give it alone")
            fields = {"key": declared.key_of(topic), "version": declared.version, **fields}
            topic, code, payload = declared.topic, declared.code, topic
        fields = {"id": "", "transactional": self._transactional, **fields}
        fields["id"] = fields["id"] or self.transport.new_id()
        return Event(topic=topic, code=code, payload=payload, **fields)  # type: ignore[arg-type]  # checked later

    def publish(
        self,
        topic: str | Event | object,
        code: str | None = None,
        payload: Any = None,
        *,
        transactional: bool | None = None,
        headers: dict[str, str] | None = None,
        key: str | None = None,
        delay: float | timedelta | None = None,
        deliver_at: datetime | int | None = None,
        raise_on_failure: bool | None = None,
        session: Any = None,
        check_after_s: int | None = None,
        at_once: bool = False,
    ) -> Published:
        """Publish an event: an object of a typed event, one that was built, or topic, code and payload. Its payload is fixed now.

        ``transactional``: True: seen by consumers if and only if the transaction commits; False: plain, sent after the commit, or
        at once outside of a transaction, and lost if the process dies before; None: the publisher's ``default``. A transactional
        event is a request to a broker inside the open transaction: publish last, when the data is written. ``session`` says which
        transaction is meant; one that has not begun begins. Without it the event belongs to the one session of the publisher's
        database that is open in this context; where that is not certain, a transactional event, or one for the outbox, is
        refused. ``at_once``: it belongs to no transaction, and is sent now. ``check_after_s``, as the publisher's, holds for this
        event. ``delay`` (seconds or a timedelta, from now on) or ``deliver_at`` (an aware datetime, or ms since the epoch):
        consumers see it then, not before. A half message cannot wait, so a transactional event is refused with them unless it
        goes through the outbox. The other options go before what a built event says. Publishing the same event again after a
        failure says to the broker that it is a repeat; after a success, in the same transaction, it is refused.

        Raises:
            UsageError: NameRefused, PayloadRefused, NoChecker, NoTransaction, TransactionEnded, AmbiguousTransaction,
                PublishedBefore, NotRunning: nothing was sent.
            PublishFailed: it was not sent, or nobody knows: let the transaction roll back.
        """
        if not self._started:
            self._open()
        changes = {"transactional": transactional, "headers": headers, "key": key, "raise_on_failure": raise_on_failure}
        event = self._event(topic, code, payload, {**changes, "deliver_at_ms": due_ms(delay, deliver_at)}, session, at_once)
        after_s = self._check_after_s if check_after_s is None else checked_after_s(check_after_s)
        operation = self._facade.publish(event, handle=session, check_after_s=after_s, blocking=True, at_once=at_once)
        return self.transport.run(operation, self.provider.awaiting())

    async def publish_async(
        self,
        topic: str | Event | object,
        code: str | None = None,
        payload: Any = None,
        *,
        transactional: bool | None = None,
        headers: dict[str, str] | None = None,
        key: str | None = None,
        delay: float | timedelta | None = None,
        deliver_at: datetime | int | None = None,
        raise_on_failure: bool | None = None,
        session: Any = None,
        check_after_s: int | None = None,
        at_once: bool = False,
    ) -> Published:
        """As `publish`, without blocking the event loop; for AsyncSession and other code on one."""
        if not self._started:
            await asyncio.to_thread(self._open)
        changes = {"transactional": transactional, "headers": headers, "key": key, "raise_on_failure": raise_on_failure}
        event = self._event(topic, code, payload, {**changes, "deliver_at_ms": due_ms(delay, deliver_at)}, session, at_once)
        after_s = self._check_after_s if check_after_s is None else checked_after_s(check_after_s)
        operation = self._facade.publish(event, handle=session, check_after_s=after_s, at_once=at_once)
        return await self.transport.run_async(operation)

    def publish_many(
        self,
        events: Iterable[Event | object],
        *,
        transactional: bool | None = None,
        session: Any = None,
        check_after_s: int | None = None,
        at_once: bool = False,
    ) -> list[Published]:
        """Publish events, objects of typed ones or built ones, all at once; return the results in their order.

        Half messages take one round trip together, and their token rows, or outbox rows, one INSERT. Options are those of
        `publish`, for all; at most `EVENTS_MAX` events. In a transaction all are published, or none: when one fails, the others
        are rolled back. Raises as `publish`. PublishFailed is raised in any case, and names those that failed (``event_ids``);
        of plain events without a transaction the others were sent.
        """
        if not self._started:
            self._open()
        operation = self._many(events, transactional, session, check_after_s, at_once, blocking=True)
        return self.transport.run(operation, self.provider.awaiting())

    async def publish_many_async(
        self,
        events: Iterable[Event | object],
        *,
        transactional: bool | None = None,
        session: Any = None,
        check_after_s: int | None = None,
        at_once: bool = False,
    ) -> list[Published]:
        """As `publish_many`, without blocking the event loop."""
        if not self._started:
            await asyncio.to_thread(self._open)
        operation = self._many(events, transactional, session, check_after_s, at_once, blocking=False)
        return await self.transport.run_async(operation)

    def _many(
        self,
        events: Iterable[Any],
        transactional: bool | None,
        session: Any,
        check_after_s: int | None,
        at_once: bool,
        *,
        blocking: bool,
    ) -> Op[list[Published]]:
        changes = {"transactional": transactional}
        made = [self._event(event, None, None, changes, session, at_once) for event in islice(events, EVENTS_MAX + 1)]
        if len(made) > EVENTS_MAX:
            raise UsageError(f"more than {EVENTS_MAX} events in one publish_many: call it several times")
        after_s = self._check_after_s if check_after_s is None else checked_after_s(check_after_s)
        return self._facade.publish_many(made, handle=session, check_after_s=after_s, blocking=blocking, at_once=at_once)

    def _event(
        self, topic: str | Event | object, code: str | None, payload: Any, changes: dict[str, Any], session: Any, at_once: bool
    ) -> Event:
        """Return the event that the arguments of a publish name. ``changes``: its fields that the call gives; None: not given."""
        if at_once and (changes["transactional"] or session is not None):
            raise UsageError("at_once=True belongs to no transaction: leave it out, or transactional=True and session=…")
        if isinstance(topic, Event):
            if code is not None or payload is not None:
                raise UsageError(f"{topic} has its code and payload: set them on the event, or give topic, code and payload")
            event = topic
        else:
            event = self._built(topic, code, payload, {})
        for name, value in changes.items():
            if value is not None:
                setattr(event, name, value)
        if event.transactional is None:
            event.transactional = self._transactional
        if not isinstance(event.transactional, bool):
            raise UsageError(f"transactional must be True or False, not {event.transactional!r:.40}")
        event.local = False
        return event

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Connect, unless it has, and start what else it runs. Starting again does nothing.

        Looks for its table in the database, which the start by a first publish does not: that one may be inside a transaction. Nor
        does one in a thread that runs an event loop, which must not wait: ``async with`` looks in another thread.
        Raises TableMissing, and then it starts nothing; NotRunning once it is closed.
        """
        if not self._started and not self._closed and not _on_loop():
            self._require_table()
        self._open()

    def _require_table(self) -> None:
        """Raise TableMissing where the table is not there by which events are written, or checks answered."""
        if self._outbox:
            require(self.provider, (self._relay_settings or RelaySettings()).tables)
        elif self._checks.provider is not None:
            require(self._checks.provider, (TOKENS,))

    def _open(self) -> None:
        self._connection.use()
        with self._lock:
            if self._closed:
                raise NotRunning(f"publisher {self.group} is closed: make another one")
            if self._started:
                return
            if self._relay_settings is not None:
                self._relay = Relay(self.provider, self.transport, settings=self._relay_settings)
                self._relay.start()
            if self._checks.provider is not None:
                self._retention = TokenRetention(self._checks.provider)
                self._retention.start()
            atexit.register(self._at_exit)
            self._started = True

    def close(self, flush_ms: int = 3_000) -> None:
        """Hand over what is under way for at most so long, and close. What is left is the check-back's, or the outbox's.

        Publishing afterwards raises NotRunning. Closing again does nothing.
        """
        with self._lock:
            self._closed, self._started = True, False
            relay, self._relay = self._relay, None
            retention, self._retention = self._retention, None
        atexit.unregister(self._at_exit)
        end_s = time.monotonic() + flush_ms / 1000
        if relay is not None:
            relay.close(flush_ms)
        if self._decider is not None:
            self._decider.close(max(0, round((end_s - time.monotonic()) * 1000)))
        self._connection.close(max(0, round((end_s - time.monotonic()) * 1000)))
        if retention is not None:
            retention.close(flush_ms / 1000)
        self.provider.release()

    async def close_async(self, flush_ms: int = 3_000) -> None:
        """As `close`, without blocking the event loop."""
        await asyncio.to_thread(self.close, flush_ms)

    def __enter__(self) -> Self:
        """Start; a table that is missing is logged only: the block may begin with `create_tables`."""
        try:
            self.start()
        except TableMissing as missing:
            log.warning("publisher %s is not ready yet, unless each tenant's schema has its tables: %s", self.group, missing)
            self._open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *error: object) -> None:
        await self.close_async()

    def _at_exit(self) -> None:
        self.close(FLUSH_AT_EXIT_MS)

    def _wake_relay(self) -> None:
        if (relay := self._relay) is not None:
            relay.wake()

    def forked(self) -> None:
        """Begin anew in a forked child, where no thread of the parent runs."""
        self._lock = threading.Lock()
        self._relay = self._retention = None
        self._started = False
        if self._decider is not None:
            self._decider.forked()


class PublishOptions(TypedDict, total=False):
    """Options of `Publisher.publish` that any session's events may have."""

    transactional: bool | None
    headers: dict[str, str] | None
    key: str | None
    delay: float | timedelta | None
    deliver_at: datetime | int | None
    raise_on_failure: bool | None
    check_after_s: int | None


class ManyOptions(TypedDict, total=False):
    """Options of `Publisher.publish_many` that any session's events may have."""

    transactional: bool | None
    check_after_s: int | None


class BoundEvents:
    """Publishes in the transaction of one session or connection, wherever it is called. Made by `Publisher.bound_to`.

    A transaction that has not begun begins with the first publish.
    """

    def __init__(self, publisher: Publisher, session: Any) -> None:
        self.publisher = publisher
        self.session = session

    def event(self, topic: str | object, code: str | None = None, payload: Any = None, **fields: Any) -> Event:
        """As `Publisher.event`."""
        return self.publisher.event(topic, code, payload, **fields)

    def publish(
        self, topic: str | Event | object, code: str | None = None, payload: Any = None, **options: Unpack[PublishOptions]
    ) -> Published:
        """As `Publisher.publish` with ``session=`` this session. Takes its other options, but for ``at_once``."""
        return self.publisher.publish(topic, code, payload, session=self.session, **options)

    def publish_many(self, events: Iterable[Event | object], **options: Unpack[ManyOptions]) -> list[Published]:
        """As `Publisher.publish_many` with ``session=`` this session."""
        return self.publisher.publish_many(events, session=self.session, **options)

    async def publish_many_async(self, events: Iterable[Event | object], **options: Unpack[ManyOptions]) -> list[Published]:
        """As `publish_many`, without blocking the event loop."""
        return await self.publisher.publish_many_async(events, session=self.session, **options)

    async def publish_async(
        self, topic: str | Event | object, code: str | None = None, payload: Any = None, **options: Unpack[PublishOptions]
    ) -> Published:
        """As `publish`, without blocking the event loop."""
        return await self.publisher.publish_async(topic, code, payload, session=self.session, **options)


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
