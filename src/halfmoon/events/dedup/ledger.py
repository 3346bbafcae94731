"""Ledger of processed events: a note of (group, topic, event id), written by the transaction in which an event is processed."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import AsyncIterator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from typing import Any, NamedTuple

from halfmoon.errors import HalfmoonError
from halfmoon.events.databases.database import Lent, Provider, Refused, Values
from halfmoon.events.databases.provider import LOCK_WAIT_MS
from halfmoon.events.errors import NameRefused
from halfmoon.events.event import check_id

_INSERT = "INSERT INTO halfmoon_consumed (consumer_group, topic, event_id, consumed_ms) VALUES (:group, :topic, :event_id, :now_ms)"
_ONE = "FROM halfmoon_consumed WHERE consumer_group = :group AND topic = :topic AND event_id = :event_id"
_SELECT = f"SELECT 1 {_ONE}".replace("= :topic", "IN (:topic, '')")
_DELETE = f"DELETE {_ONE} AND consumed_ms = :now_ms"
_OLD = "SELECT 1 FROM halfmoon_consumed WHERE consumer_group = :group AND topic = ''"

log = logging.getLogger("halfmoon.events")


class ConsumedBefore(Exception):
    """The group has processed this event before."""


class NotCommitted(HalfmoonError):
    """A function returned, but its transaction did not commit: an error that it caught ended it, or it rolled back itself."""


class ConsumedKey(NamedTuple):
    """Note that a group has processed the event of a topic and id, at a time. Made by `key_of`."""

    group: str
    topic: str
    event_id: str
    now_ms: int

    @property
    def key(self) -> dict[str, str]:
        """Values of the columns of its key."""
        return {"group": self.group, "topic": self.topic, "event_id": self.event_id}

    def __str__(self) -> str:
        return f"group={self.group} topic={self.topic} event={self.event_id}"


def key_of(group: str, topic: str, event_id: str) -> ConsumedKey:
    """Return the note of an event. An id that no publisher of ours makes is noted as ``#`` and a digest.

    Some databases would take such ids for one: they ignore blanks at the end, or cut long texts.
    """
    now_ms = time.time_ns() // 1_000_000
    try:
        return ConsumedKey(group, topic, check_id(event_id), now_ms)
    except NameRefused:
        return ConsumedKey(group, topic, "#" + sha256(event_id.encode("utf-8", "surrogatepass")).hexdigest()[:63], now_ms)


class ConsumedLedger:
    """Notes of processed events in the database of one provider, whose transactions it lends. Safe to use from many threads.

    Remembers of which groups there are no notes without a topic any more.
    """

    def __init__(self, provider: Provider, *, lock_wait_ms: int = LOCK_WAIT_MS) -> None:
        self.provider = provider
        self.is_async = provider.is_async
        self._lock_wait_ms = lock_wait_ms
        self._have_topics: set[str] = set()

    @asynccontextmanager
    async def lend(self, note: ConsumedKey) -> AsyncIterator[Any]:
        """Open a transaction in which an event is noted, and give the function's handle of it, such as a session.

        Left without an exception it commits. Waits for another transaction that notes the same event. It never suspends unless
        the provider is one of an event loop. Raises ConsumedBefore when the event was processed before, Busy, and what the driver
        raises.
        """
        async with AsyncExitStack() as stack:
            block: Any = self.provider.lend()
            lent: Lent = await stack.enter_async_context(block) if self.is_async else stack.enter_context(block)
            await self._write(lent.rows, note)
            yield lent.handle

    async def _write(self, rows: Any, note: ConsumedKey) -> None:
        steps = self._steps(rows.dialect, note)
        found: Any = None
        try:
            while True:
                statement, values = steps.send(found)
                found = rows.all(statement, values) if statement.startswith("SELECT") else rows.run(statement, values)
                if inspect.isawaitable(found):
                    found = await found
        except StopIteration:
            return
        except Refused as exc:
            raise ConsumedBefore from exc

    def _steps(self, dialect: str, note: ConsumedKey) -> Generator[tuple[str, Values], Any, None]:
        """Yield the statements that note an event; a query gets its rows back. A row that is refused was there: ConsumedBefore.

        Bounds the wait where nothing does: PostgreSQL waits for ever unless told otherwise, SQLite and MySQL do not.
        """
        bounds = dialect == "postgresql" and (yield "SELECT current_setting('lock_timeout')", {}) == [("0",)]
        if bounds:
            yield f"SET LOCAL lock_timeout = {self._lock_wait_ms}", {}
        yield _INSERT, {**note.key, "now_ms": note.now_ms}
        if bounds:
            yield "SET LOCAL lock_timeout = 0", {}  # what the function does waits as it always did; an error rolls all back
        if note.group in self._have_topics:
            return
        if not (yield f"{_OLD} LIMIT 1", {"group": note.group}):
            self._have_topics.add(note.group)
        elif (yield f"{_OLD} AND event_id = :event_id", {"group": note.group, "event_id": note.event_id}):
            raise ConsumedBefore


def seen(provider: Provider, note: ConsumedKey) -> bool:
    """Return whether a note is committed: the only evidence that the effect is. Raises Busy, and the errors of the driver."""
    with provider.fresh(lock_wait_ms=LOCK_WAIT_MS) as rows:
        return bool(rows.all(_SELECT, note.key))


def take_back(provider: Provider, note: ConsumedKey) -> None:
    """Remove a note that a function committed by itself before it failed, so that the event comes again. Errors are logged.

    A note of another attempt has another time, and stays.
    """
    try:
        with provider.fresh() as rows:
            if rows.run(_DELETE, {**note.key, "now_ms": note.now_ms}):
                log.warning("a consumer committed its transaction itself and failed afterwards: %s", note)
    except Exception as exc:
        log.warning("if the consumer committed its transaction itself, the event counts as processed: %s reason=%s", note, exc)
