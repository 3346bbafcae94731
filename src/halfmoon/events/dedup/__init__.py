"""No effect twice: which events were processed, kept in `halfmoon_consumed` by the transaction in which an event is processed.

A ledger opens a transaction, notes (group, topic, event id) in it, and lends it to the consumer's function; both are committed or
neither.
Whoever gets the same event again finds the id there, or waits for the transaction that is about to write it. Rows older than what
is kept are removed in bounded steps; an event that comes again later than that is processed again.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from halfmoon.errors import UsageError
from halfmoon.events.checks import tokens
from halfmoon.events.context import LocalTransaction, Synchronization
from halfmoon.events.databases.database import Provider, Refused, Rows
from halfmoon.events.databases.retention import remove_old
from halfmoon.events.databases.tables import CONSUMED
from halfmoon.events.errors import NameRefused
from halfmoon.events.event import check_id

KEEP_S = 7 * 24 * 3600
"""Seconds that ids are kept unless told otherwise: brokers keep messages for three days, redeliveries take five hours."""

_INSERT = "INSERT INTO halfmoon_consumed (consumer_group, topic, event_id, consumed_ms) VALUES (:group, :topic, :event_id, :now_ms)"
_DELETE = "DELETE FROM halfmoon_consumed WHERE consumer_group = :group AND topic = :topic AND event_id = :event_id"
_OLD = "SELECT 1 FROM halfmoon_consumed WHERE consumer_group = :group AND topic = ''"

log = logging.getLogger("halfmoon.events")


class Consumed(Exception):
    """The group has processed this event before."""


class Note(NamedTuple):
    """What is noted: that a group has processed the event of a topic and id. Made by `note_of`."""

    group: str
    topic: str
    event_id: str

    def __str__(self) -> str:
        return f"group={self.group} topic={self.topic} event={self.event_id}"


def note_of(group: str, topic: str, event_id: str) -> Note:
    """Return what is noted of an event. An id that is none of a publisher's is noted as ``#`` and a digest: no database decides
    then which of them are the same, as some do of blanks at the end, or of what they cut.
    """
    try:
        return Note(group, topic, check_id(event_id))
    except NameRefused:
        return Note(group, topic, "#" + sha256(event_id.encode("utf-8", "surrogatepass")).hexdigest()[:63])


class Ledger(Protocol):
    """Notes what was processed in one database. Safe to use from many threads."""

    is_async: bool
    """Whether it lends transactions to coroutine functions, or to plain ones."""

    provider: Provider

    def lend(self, note: Note) -> Any:
        """Return a block with a transaction in which an event is noted; it gives what the function works with.

        It is for ``with``, or for ``async with`` where `is_async`. Left without an exception it commits. Raises Consumed when the
        event was processed before, Busy, and what the driver raises.
        """


LOCK_WAIT_MS = 10_000
"""How long one who is given an event waits for a transaction that processes it; then it comes again later."""


class ProviderLedger:
    """Lends transactions that a provider of another kind opens by itself: the function gets its `Rows`."""

    is_async = False

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self._notes = Notes()

    @contextmanager
    def lend(self, note: Note) -> Iterator[Any]:
        """Lend the `Rows` of a transaction of its own."""
        with self.provider.fresh(lock_wait_ms=LOCK_WAIT_MS) as rows:
            self._notes.write(rows, note)
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
    """Make the table of processed events where it is not there yet, and migrate one of an older form.

    Raises Busy, and what the database refuses with.
    """
    tokens.create_tables(provider, (CONSUMED,))


def require_table(ledger: Ledger) -> None:
    """See that the table is there; a database that cannot be asked now is left in peace. Raises TableMissing or
    TableOutdated, with the remedy."""
    tokens.require(ledger.provider, (CONSUMED,))


def purge(provider: Provider, now_ms: int, keep_s: int = KEEP_S) -> int:
    """Remove the ids of events processed more than ``keep_s`` ago, step by step; return how many. Raises Busy."""
    return remove_old(provider, CONSUMED, "consumed_ms", now_ms, keep_s * 1000)


@contextmanager
def _bounded(rows: Rows) -> Iterator[None]:
    """Bound a wait of the block where nothing does: PostgreSQL waits for ever unless told otherwise, SQLite and MySQL do not."""
    if rows.dialect != "postgresql" or rows.all("SELECT current_setting('lock_timeout')")[0][0] != "0":
        yield
        return
    rows.run(f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}")
    yield
    rows.run("SET LOCAL lock_timeout = 0")  # what the function does waits as it always did; after an error all is rolled back


class Notes:
    """Writes the notes of one ledger, and remembers of which groups there are none without a topic any more."""

    def __init__(self) -> None:
        self._have_topics: set[str] = set()

    def write(self, rows: Rows, note: Note) -> None:
        """Note in a transaction that a group processes an event. Waits for another that does. Raises Consumed, Busy."""
        try:
            with _bounded(rows):
                rows.run(_INSERT, {**note._asdict(), "now_ms": time.time_ns() // 1_000_000})
        except Refused as exc:
            raise Consumed from exc
        if note.group in self._have_topics:
            return
        if not rows.all(f"{_OLD} LIMIT 1", {"group": note.group}):
            self._have_topics.add(note.group)
        elif rows.all(f"{_OLD} AND event_id = :event_id", {"group": note.group, "event_id": note.event_id}):
            raise Consumed


class OwnCommit(Synchronization):
    """Sees a function commit the transaction that it was lent, and fail then: the note was committed along, and is taken back.

    Else the event that comes again would count as processed. Registered right after the note.
    """

    def __init__(self, provider: Provider, note: Note) -> None:
        self._provider, self._note = provider, note
        self.committed = False

    def after_commit(self) -> None:
        """It was committed: by the function where its block has not ended."""
        self.committed = True

    def failed(self) -> None:
        """The function failed. Blocks where the note is to be removed; what fails at that is logged."""
        if not self.committed:
            return
        log.warning("a consumer committed by itself and failed then: %s", self._note)
        try:
            with self._provider.fresh() as rows:
                rows.run(_DELETE, self._note._asdict())
        except Exception as exc:
            log.error("its event counts as processed: %s reason=%s", self._note, exc)

    @contextmanager
    def watching(self, transaction: LocalTransaction) -> Iterator[None]:
        """Watch a function that runs inside the block."""
        transaction.register(self)
        try:
            yield
        except BaseException:
            self.failed()
            raise
