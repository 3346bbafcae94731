"""No effect twice: the ids of processed events, kept in `halfmoon_consumed` by the transaction in which an event is processed.

A ledger opens a transaction, notes (group, event id) in it, and lends it to the consumer's function; both are committed or neither.
Whoever gets the same event again finds the id there, or waits for the transaction that is about to write it. Rows older than what
is kept are removed in bounded steps; an event that comes again later than that is processed again.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

from halfmoon.errors import UsageError
from halfmoon.events import tokens
from halfmoon.events.context import LocalTransaction, Synchronization
from halfmoon.events.database import Provider, Refused, Rows, Values
from halfmoon.events.removal import remove_old
from halfmoon.events.tables import CONSUMED

KEEP_S = 7 * 24 * 3600
"""Seconds that ids are kept unless told otherwise: brokers keep messages for three days, redeliveries take five hours."""

_INSERT = "INSERT INTO halfmoon_consumed (consumer_group, event_id, consumed_ms) VALUES (:group, :event_id, :now_ms)"

_DELETE = "DELETE FROM halfmoon_consumed WHERE consumer_group = :group AND event_id = :event_id"

log = logging.getLogger("halfmoon.events")


class Consumed(Exception):
    """The group has processed this event before."""


class Ledger(Protocol):
    """Notes what was processed in one database. Safe to use from many threads."""

    is_async: bool
    """Whether it lends transactions to coroutine functions, or to plain ones."""

    provider: Provider

    def lend(self, group: str, event_id: str) -> Any:
        """Return a block with a transaction in which the event is noted; it gives what the function works with.

        It is for ``with``, or for ``async with`` where `is_async`. Left without an exception it commits. Raises Consumed when the
        event was processed before, Busy, and what the driver raises.
        """


LOCK_WAIT_MS = 10_000
"""How long a transaction that a provider opens waits for one that processes the same event."""


class ProviderLedger:
    """Lends transactions that a provider of another kind opens by itself: the function gets its `Rows`."""

    is_async = False

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    @contextmanager
    def lend(self, group: str, event_id: str) -> Iterator[Any]:
        """Lend the `Rows` of a transaction of its own."""
        with self.provider.fresh(lock_wait_ms=LOCK_WAIT_MS) as rows:
            note(rows, group, event_id)
            yield rows


def ledger_of(dedup: Any) -> Ledger:
    """Return the ledger that a consumer's ``dedup`` names. Raises UsageError for what is none of the kinds it may be."""
    if isinstance(dedup, str):
        return _of_django(dedup)
    found: Ledger | None = None
    if all(callable(getattr(dedup, name, None)) for name in ("fresh", "rows", "current")):
        if callable(getattr(dedup, "proxied", None)):
            found = import_module("halfmoon.events.dedup.dbapi").ConnectionLedger(dedup)
        return found or ProviderLedger(dedup)
    if "sqlalchemy.orm" in sys.modules:  # who has such a thing has loaded it
        found = import_module("halfmoon.events.dedup.sqlalchemy").ledger(dedup)
    if found is None:
        raise UsageError(
            f"dedup={dedup!r:.60}: give a sessionmaker, async_sessionmaker, Engine, the alias of a Django database or a provider"
        )
    return found


def _of_django(alias: str) -> Ledger:
    if not alias.isidentifier():  # an address would have a password
        raise UsageError("dedup= is a text that is no alias of a Django database: give a sessionmaker on that database instead")
    try:
        module = import_module("halfmoon.events.dedup.django")
    except ImportError as exc:
        raise UsageError(f"dedup={alias!r:.60} is the alias of a Django database: install halfmoon[django] ({exc})") from exc
    made: Ledger = module.DjangoLedger(alias)
    return made


def create_tables(provider: Provider) -> None:
    """Make the table of processed events, where it is not there yet. Raises Busy, and what the database refuses with."""
    tokens.create_tables(provider, (CONSUMED,))


def require_table(ledger: Ledger) -> None:
    """See that the table is there; a database that cannot be asked now is left in peace. Raises TableMissing, with the remedy."""
    tokens.require(ledger.provider, (CONSUMED,))


def purge(provider: Provider, now_ms: int, keep_s: int = KEEP_S) -> int:
    """Remove the ids of events processed more than ``keep_s`` ago, step by step; return how many. Raises Busy."""
    return remove_old(provider, CONSUMED, "consumed_ms", now_ms, keep_s * 1000)


def note(rows: Rows, group: str, event_id: str) -> None:
    """Note in a transaction that a group processes an event. Waits for another that does. Raises Consumed, Busy."""
    try:
        rows.run(_INSERT, _values(group, event_id))
    except Refused as exc:
        raise Consumed from exc


async def note_async(provider: Provider, transaction: LocalTransaction, group: str, event_id: str) -> None:
    """As `note`, in a transaction of an event loop."""
    try:
        await provider.run_async(transaction, _INSERT, _values(group, event_id))
    except Refused as exc:
        raise Consumed from exc


class OwnCommit(Synchronization):
    """Sees a function commit the transaction that it was lent, and fail then: the note was committed along, and is taken back.

    Else the event that comes again would count as processed. Registered right after the note.
    """

    def __init__(self, provider: Provider, group: str, event_id: str) -> None:
        self._provider, self._group, self._event_id = provider, group, event_id
        self.committed = False

    def after_commit(self) -> None:
        """It was committed: by the function where its block has not ended."""
        self.committed = True

    def failed(self) -> None:
        """The function failed. Blocks where the note is to be removed; what fails at that is logged."""
        if not self.committed:
            return
        log.warning("a consumer committed by itself and failed then: group=%s event=%s", self._group, self._event_id)
        try:
            with self._provider.fresh() as rows:
                rows.run(_DELETE, {"group": self._group, "event_id": self._event_id})
        except Exception as exc:
            log.error("its event counts as processed: group=%s event=%s reason=%s", self._group, self._event_id, exc)

    @contextmanager
    def watching(self, transaction: LocalTransaction) -> Iterator[None]:
        """Watch a function that runs inside the block."""
        transaction.register(self)
        try:
            yield
        except BaseException:
            self.failed()
            raise


def _values(group: str, event_id: str) -> Values:
    return {"group": group, "event_id": event_id, "now_ms": time.time_ns() // 1_000_000}
