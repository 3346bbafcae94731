"""The ledger of processed events: a note of (group, topic, event id), written by the transaction in which an event is processed."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

from halfmoon.errors import HalfmoonError
from halfmoon.events.databases.database import Provider, Refused, Rows, Values
from halfmoon.events.errors import NameRefused
from halfmoon.events.event import check_id
from halfmoon.events.transaction import LocalTransaction

_INSERT = "INSERT INTO halfmoon_consumed (consumer_group, topic, event_id, consumed_ms) VALUES (:group, :topic, :event_id, :now_ms)"
_ONE = "FROM halfmoon_consumed WHERE consumer_group = :group AND topic = :topic AND event_id = :event_id"
_SELECT = f"SELECT 1 {_ONE}".replace("= :topic", "IN (:topic, '')")
_DELETE = f"DELETE {_ONE} AND consumed_ms = :now_ms"
_OLD = "SELECT 1 FROM halfmoon_consumed WHERE consumer_group = :group AND topic = ''"

log = logging.getLogger("halfmoon.events")


class Consumed(Exception):
    """The group has processed this event before."""


class NotCommitted(HalfmoonError):
    """A function returned, and its transaction did not commit: an error that it caught ended it, or it rolled back itself."""


class ConsumedKey(NamedTuple):
    """Note that a group has processed the event of a topic and id, at a time. Made by `key_of`."""

    group: str
    topic: str
    event_id: str
    now_ms: int

    @property
    def key(self) -> dict[str, str]:
        """The values of its key's columns."""
        return {"group": self.group, "topic": self.topic, "event_id": self.event_id}

    def __str__(self) -> str:
        return f"group={self.group} topic={self.topic} event={self.event_id}"


def key_of(group: str, topic: str, event_id: str) -> ConsumedKey:
    """Return what is noted of an event. An id that is none of a publisher's is noted as ``#`` and a digest: no database decides
    then which of them are the same, as some do of blanks at the end, or of what they cut.
    """
    now_ms = time.time_ns() // 1_000_000
    try:
        return ConsumedKey(group, topic, check_id(event_id), now_ms)
    except NameRefused:
        return ConsumedKey(group, topic, "#" + sha256(event_id.encode("utf-8", "surrogatepass")).hexdigest()[:63], now_ms)


class Ledger(Protocol):
    """Notes what was processed in one database. Safe to use from many threads."""

    is_async: bool
    """Whether it lends transactions to coroutine functions, or to plain ones."""

    provider: Provider

    def lend(self, note: ConsumedKey) -> Any:
        """Return a block with a transaction in which an event is noted; it gives what the function works with.

        It is for ``with``, or for ``async with`` where `is_async`. Left without an exception it commits. Raises Consumed when the
        event was processed before, Busy, and what the driver raises.
        """


LOCK_WAIT_MS = 10_000
"""How long one who is given an event waits for a transaction that processes it; then it comes again later."""


class TransactionLedger:
    """Lends what a provider names its transactions by, such as sessions. ``begin`` opens a block that gives one and commits."""

    is_async = False

    def __init__(self, provider: Provider, begin: Callable[[], Any]) -> None:
        self.provider, self._begin = provider, begin
        self._notes = ConsumedRows()

    @contextmanager
    def lend(self, note: ConsumedKey) -> Iterator[Any]:
        """Lend what ``begin`` gives."""
        with self._begin() as handle:
            self._notes.write(self.provider.rows(self._transaction(handle)), note)
            yield handle

    def _transaction(self, handle: Any) -> LocalTransaction:
        transaction = self.provider.current(handle)
        assert transaction is not None, "it has begun"
        return transaction


class AsyncTransactionLedger(TransactionLedger):
    """As `TransactionLedger`, for coroutine functions."""

    is_async = True

    @asynccontextmanager
    async def lend(self, note: ConsumedKey) -> AsyncIterator[Any]:  # type: ignore[override]
        """Lend what ``begin`` gives."""
        async with self._begin() as handle:
            await self._notes.write_async(self.provider, self._transaction(handle), note)
            yield handle


class ProviderLedger:
    """Lends transactions that a provider of another kind opens by itself: the function gets its `Rows`."""

    is_async = False

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self._notes = ConsumedRows()

    @contextmanager
    def lend(self, note: ConsumedKey) -> Iterator[Any]:
        """Lend the `Rows` of a transaction of its own."""
        with self.provider.fresh(lock_wait_ms=LOCK_WAIT_MS) as rows:
            self._notes.write(rows, note)
            yield rows


class ConsumedRows:
    """Writes the notes of one ledger, and remembers of which groups there are none without a topic any more."""

    def __init__(self) -> None:
        self._have_topics: set[str] = set()

    def write(self, rows: Rows, note: ConsumedKey) -> None:
        """Note in a transaction that a group processes an event. Waits for another that does. Raises Consumed, Busy."""
        steps = self._steps(rows.dialect, note)
        found: Sequence[Sequence[Any]] | None = None
        try:
            while True:
                statement, values = steps.send(found)
                found = rows.all(statement, values) if statement.startswith("SELECT") else [[rows.run(statement, values)]]
        except StopIteration:
            return
        except Refused as exc:
            raise Consumed from exc

    async def write_async(self, provider: Provider, transaction: LocalTransaction, note: ConsumedKey) -> None:
        """As `write`, in a transaction of an event loop."""
        steps = self._steps(provider.dialect, note)
        found: Sequence[Sequence[Any]] | None = None
        try:
            while True:
                statement, values = steps.send(found)
                if statement.startswith("SELECT"):
                    found = await provider.all_async(transaction, statement, values)
                else:
                    found = [[await provider.run_async(transaction, statement, values)]]
        except StopIteration:
            return
        except Refused as exc:
            raise Consumed from exc

    def _steps(self, dialect: str, note: ConsumedKey) -> Generator[tuple[str, Values], Sequence[Sequence[Any]] | None, None]:
        """Yield the statements that note an event; each gives the rows that it found. A row that is refused was there: Consumed.

        Bounds the wait where nothing does: PostgreSQL waits for ever unless told otherwise, SQLite and MySQL do not.
        """
        bounds = dialect == "postgresql" and (yield "SELECT current_setting('lock_timeout')", {}) == [("0",)]
        if bounds:
            yield f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}", {}
        yield _INSERT, {**note.key, "now_ms": note.now_ms}
        if bounds:
            yield "SET LOCAL lock_timeout = 0", {}  # what the function does waits as it always did; an error rolls all back
        if note.group in self._have_topics:
            return
        if not (yield f"{_OLD} LIMIT 1", {"group": note.group}):
            self._have_topics.add(note.group)
        elif (yield f"{_OLD} AND event_id = :event_id", {"group": note.group, "event_id": note.event_id}):
            raise Consumed


def seen(provider: Provider, note: ConsumedKey) -> bool:
    """Return whether a note is committed: the only evidence that the effect is. Raises Busy, and what the driver raises."""
    with provider.fresh(lock_wait_ms=LOCK_WAIT_MS) as rows:
        return bool(rows.all(_SELECT, note.key))


def take_back(provider: Provider, note: ConsumedKey) -> None:
    """Remove a note that a function committed by itself before it failed, so that the event comes again. What fails is logged.

    A note of another attempt has another time, and stays.
    """
    try:
        with provider.fresh() as rows:
            if rows.run(_DELETE, {**note.key, "now_ms": note.now_ms}):
                log.warning("a consumer committed its transaction itself and failed afterwards: %s", note)
    except Exception as exc:
        log.warning("if the consumer committed its transaction itself, the event counts as processed: %s reason=%s", note, exc)
