"""Token rows: how a broker's check is answered without the user writing a checker.

A transactional event's own transaction writes a row (id, `PRESENT`) right before the first phase. A check looks for it in a
transaction of its own; where there is none it writes a tombstone (same id, `TOMBSTONE`). The key lets only one of the two commit:

* the tombstone committed: the original's row hits the key, it never commits: rollback, proven;
* the row is there: its transaction committed: commit;
* the database waits for the open original and gives up soon (`Busy`), or cannot be asked: open, the broker asks again, for as long
  as it keeps what is undecided.

The half message carries where its row lies (`Home`): the table's random id, and its schema. A process whose database is another,
such as a laptop, or one that only reads, such as a replica, learns nothing from it: `AnotherDatabase`.

Rows are removed after `KEEP_MS`. Where the row of an old event is missing it may have been removed, and nothing is proven: a check
of an event older than half of that time stays undecided. Needs isolation of READ COMMITTED or better. Knows no driver.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Self

from halfmoon.errors import UsageError
from halfmoon.events.databases.database import Busy, Database, Provider, Refused, Rows, SchemaRows
from halfmoon.events.databases.error_classification import not_permitted, read_only
from halfmoon.events.databases.many_rows import letters
from halfmoon.events.databases.retention import remove_old
from halfmoon.events.tables import IDENTITY, TOKENS, Table, TableMissing, check_schema, create, identify, is_schema, migrate
from halfmoon.model import LocalTransactionState

PRESENT, TOMBSTONE = 1, 0
KEEP_MS = 7 * 24 * 3600 * 1000
LOCK_WAIT_MS = 500
"""How long a check waits for the original transaction: it is asked again, and in SQLite the user's writer waits behind it."""

CLEAN_EVERY_S = 3_600

INSERT = f"INSERT INTO {TOKENS.name} (id, state, created_ms) VALUES (:id, :state, :created_ms)"

# Serializable transactions would conflict by reading the page into which others insert: their messages carry no id.
_HOME_IN_POSTGRESQL = (
    f"CASE WHEN current_setting('transaction_isolation') <> 'serializable' THEN (SELECT created_ms FROM {TOKENS.name} "
    f"WHERE id = '{IDENTITY}') END, (SELECT n.nspname FROM pg_class c "
    f"JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = CAST('{TOKENS.name}' AS regclass))"
)
_HOME = {
    "postgresql": f"SELECT {_HOME_IN_POSTGRESQL}",
    "mysql": f"SELECT (SELECT created_ms FROM {TOKENS.name} WHERE id = '{IDENTITY}'), DATABASE(), '{TOKENS.name}'",
}
_HOME_WITHOUT_SCHEMA = f"SELECT created_ms, '' FROM {TOKENS.name} WHERE id = '{IDENTITY}'"

INSERT_AND_TELL = f"{INSERT} RETURNING {_HOME_IN_POSTGRESQL}"
"""As `INSERT`, in PostgreSQL; gives what `home_query` would."""


DATABASE_PROPERTY, SCHEMA_PROPERTY = "EVENT_DATABASE", "EVENT_SCHEMA"

log = logging.getLogger("halfmoon.events")


class AnotherDatabase(Exception):
    """The row of an event lies in a database that is not this one, or that cannot be written here."""


class Home(NamedTuple):
    """Where the token row of an event lies: in the table of a random id, 0 for one that has none, and of a schema."""

    database: int = 0
    schema: str = ""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Self:
        """Return what a half message says; one of an older release says nothing. Raises AnotherDatabase for what is no home."""
        try:
            return cls(int(properties.get(DATABASE_PROPERTY, "0"), 16), check_schema(properties.get(SCHEMA_PROPERTY, "")))
        except (ValueError, UsageError) as error:
            raise AnotherDatabase(f"the message names none: {error}") from error

    @property
    def properties(self) -> dict[str, str]:
        """Return what a half message says."""
        found = {DATABASE_PROPERTY: f"{self.database:x}" if self.database else "", SCHEMA_PROPERTY: self.schema}
        return {name: text for name, text in found.items() if text}

    def __str__(self) -> str:
        return f"{self.database:x}{'.' if self.schema else ''}{self.schema}"


NOWHERE = Home()


def home_query(dialect: str) -> str:
    """Return the query that asks, in a transaction, where its token rows lie."""
    return _HOME.get(dialect, _HOME_WITHOUT_SCHEMA)


def tells_home(dialect: str) -> bool:
    """Return whether a database takes `INSERT_AND_TELL`."""
    return dialect == "postgresql"


def home_found(rows: Sequence[Sequence[Any]]) -> Home:
    """Return what the rows of `home_query` or `INSERT_AND_TELL` say.

    A schema that statements cannot name is left out, and the id tells the table.

    Raises UsageError for such a schema where there is no id either.
    """
    if not rows:
        return NOWHERE
    database, schema, *named = rows[0]
    if named and "." in named[0]:  # MySQL: the statement names another schema than that of the connection
        schema = named[0].rpartition(".")[0].strip("`")
    if schema and not is_schema(schema):
        if not database:
            check_schema(schema)
        schema = ""
    return Home(int(database or 0), schema or "")


def of_writer(home: Home, dialect: str) -> Home:
    """Return what the process asks that wrote the row: its own database, whatever the table's id is by now.

    The id counts where the schema could not be named, or a table of that name in another schema would be asked.
    """
    return Home(0, home.schema) if home.schema or dialect == "sqlite" else home


def values(event_id: str, now_ms: int) -> dict[str, str | int]:
    """Return the values of `INSERT` for an event, in its own transaction. It is refused (`Refused`) when a check was first."""
    return {"id": event_id, "state": PRESENT, "created_ms": now_ms}


def delete(event_ids: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the statement that removes rows, and its values: for events that could not be published, in their transaction."""
    names = {f"id_{letters(number)}": event_id for number, event_id in enumerate(event_ids)}
    return f"DELETE FROM {TOKENS.name} WHERE id IN ({', '.join(f':{name}' for name in names)})", names


def answer(
    provider: Provider,
    event_id: str,
    published_ms: int,
    now_ms: int,
    home: Home = NOWHERE,
    *,
    keep_ms: int = KEEP_MS,
    lock_wait_ms: int = LOCK_WAIT_MS,
) -> LocalTransactionState:
    """Return what became of the transaction of an event that wrote a token row; see `settle`.

    Raises AnotherDatabase, TableMissing, and what the driver raises for what no other try will mend.
    """
    try:
        state = states(provider, [event_id], home, lock_wait_ms=lock_wait_ms).get(event_id)
    except Busy as busy:
        log.info("a check of an event is undecided, the database is busy: event_id=%s error=%s", event_id, busy)
        return LocalTransactionState.OPEN
    if state is None:
        state = settle(provider, event_id, published_ms, now_ms, home, keep_ms=keep_ms, lock_wait_ms=lock_wait_ms)
    if state is LocalTransactionState.OPEN:
        log.info("a check of an event is undecided, its transaction may be open: event_id=%s", event_id)
    return state


def states(
    provider: Provider, event_ids: Sequence[str], home: Home = NOWHERE, *, lock_wait_ms: int | None = LOCK_WAIT_MS
) -> dict[str, LocalTransactionState]:
    """Return COMMIT or ROLLBACK for those of some events whose row, or tombstone, is there.

    ``lock_wait_ms`` is that of `Database.fresh`. Raises AnotherDatabase, Busy, and as `answer`. A table without a random id is
    given one.
    """
    if not event_ids:
        return {}
    with _at(provider, home, lock_wait_ms) as rows:
        found = _found(rows, event_ids)
    identity = found.pop(IDENTITY, None)
    _check(home, identity)
    if identity is None:
        with suppress(Exception), _at(provider, home, LOCK_WAIT_MS) as rows:
            rows.run(identify(rows.dialect))
    return {event_id: _meaning(state) for event_id, (state, _) in found.items()}


def states_in(rows: Rows, event_ids: Sequence[str]) -> dict[str, LocalTransactionState]:
    """As `states`, as one transaction sees it; of one event at least."""
    return {event_id: _meaning(state) for event_id, (state, _) in _found(rows, event_ids).items() if event_id != IDENTITY}


def _found(rows: Rows, event_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the state and time of those rows of some events that are there, and of the table's own."""
    # The number of places is a power of two, so that few statements differ and caches of them pay.
    asked = [IDENTITY, *event_ids, *[event_ids[-1]] * ((1 << len(event_ids).bit_length()) - len(event_ids) - 1)]
    names = [f"id_{letters(number)}" for number in range(len(asked))]
    query = f"SELECT id, state, created_ms FROM {TOKENS.name} WHERE id IN ({', '.join(f':{name}' for name in names)})"
    found = rows.all(query, dict(zip(names, asked, strict=True)))
    return {event_id: (int(state), int(created_ms)) for event_id, state, created_ms in found}


@contextmanager
def _at(provider: Provider, home: Home, lock_wait_ms: int | None) -> Iterator[Rows]:
    """Open a transaction where the row of an event lies.

    Raises AnotherDatabase for a table of an id that is not there or not to be touched, and for one that only reads.
    """
    try:
        with provider.fresh(lock_wait_ms=lock_wait_ms) as rows:
            if home.schema and rows.dialect == "sqlite":
                raise AnotherDatabase(f"{home} is not here: SQLite has no schemas")
            yield SchemaRows(rows, home.schema)
    except TableMissing as missing:
        if home.database:
            raise AnotherDatabase(f"{home} is not here: {missing.table} is missing") from missing
        raise
    except Exception as error:
        if read_only(error):
            raise AnotherDatabase("the database only reads") from error
        if home.database and not_permitted(error):
            raise AnotherDatabase(f"{home} may not be read and written here: {error}".splitlines()[0]) from error
        raise


def _check(home: Home, identity: tuple[int, int] | None) -> None:
    here = identity[1] if identity is not None else 0
    if home.database not in (0, here):
        raise AnotherDatabase(f"the row lies in database {home}, this one is {Home(here, home.schema)}")


def check_home(provider: Provider, home: Home, *, lock_wait_ms: int = LOCK_WAIT_MS) -> None:
    """Raise AnotherDatabase where a row does not lie in the table of a provider. Raises Busy, and as `answer`."""
    if home.database:
        with _at(provider, home, lock_wait_ms) as rows:
            _check(home, _found(rows, [IDENTITY]).get(IDENTITY))


def settle(
    provider: Provider,
    event_id: str,
    published_ms: int,
    now_ms: int,
    home: Home = NOWHERE,
    *,
    keep_ms: int = KEEP_MS,
    lock_wait_ms: int = LOCK_WAIT_MS,
) -> LocalTransactionState:
    """Write the tombstone of an event whose row was not seen, and return what that proves.

    ROLLBACK once it is written; COMMIT when the row came before it; OPEN when a later try may tell: its transaction holds the row,
    or the database cannot be asked now; UNKNOWN when none will. ``published_ms``: when it was published, by the publisher's clock;
    0 when nobody knows. Raises as `answer`.
    """
    if now_ms - published_ms > keep_ms // 2:
        log.warning(
            "an event is too old for its missing token row to prove anything, it stays undecided: decide it with halfmoon tx: "
            "event_id=%s age_ms=%d",
            event_id, now_ms - published_ms,
        )  # fmt: skip
        return LocalTransactionState.UNKNOWN
    try:
        with _at(provider, home, lock_wait_ms) as rows:
            rows.run(INSERT, {"id": event_id, "state": TOMBSTONE, "created_ms": now_ms})
            if home.database:
                _check(home, _found(rows, [IDENTITY]).get(IDENTITY))
        return LocalTransactionState.ROLLBACK
    except Refused:
        return _again(provider, event_id, home, lock_wait_ms)
    except Busy as busy:
        log.debug("an event is undecided, its transaction may be open: event_id=%s error=%s", event_id, busy)
        return LocalTransactionState.OPEN


def _again(provider: Provider, event_id: str, home: Home, lock_wait_ms: int) -> LocalTransactionState:
    """Read who took the key while we wrote: the original, or another check."""
    try:
        return states(provider, [event_id], home, lock_wait_ms=lock_wait_ms).get(event_id, LocalTransactionState.OPEN)
    except Busy:
        return LocalTransactionState.OPEN


def _meaning(state: int) -> LocalTransactionState:
    return LocalTransactionState.COMMIT if state == PRESENT else LocalTransactionState.ROLLBACK


# ---------------------------------------------------------------- the tables


def create_tables(provider: Database, tables: Sequence[Table] = (TOKENS,)) -> None:
    """Make the tables that are not there, and bring those of an older form up to date, each in transactions of its own.

    Raises Busy, and what the database refuses with.
    """
    for table in tables:
        try:
            _create(provider, table)
        except Exception:
            if not exists(provider, table):  # somebody may have made it at the same time, which PostgreSQL refuses
                raise


def _create(provider: Database, table: Table) -> None:
    with provider.fresh(lock_wait_ms=10_000) as rows:
        for statement in create(table, rows.dialect):
            rows.run(statement)
    if not exists(provider, table):
        with provider.fresh(lock_wait_ms=10_000) as rows:
            for statement in migrate(table, rows.dialect):
                rows.run(statement)
        log.info("a table was migrated: table=%s", table.name)


def exists(provider: Database, table: Table = TOKENS) -> bool:
    """Return whether a table is there in today's form. Raises Busy."""
    try:
        check_table(provider, table)
    except TableMissing:
        return False
    return True


def check_table(provider: Database, table: Table) -> None:
    """Raise TableMissing for a table that is not there, TableOutdated for one of an older form. Raises Busy."""
    with provider.fresh() as rows:
        rows.all(f"SELECT {', '.join(one.name for one in table.columns)} FROM {table.name} WHERE 1 = 0")


def require(provider: Database, tables: Sequence[Table] = (TOKENS,)) -> None:
    """Raise as `check_table` for a table that is not there as it should. A database that cannot be asked now is left in peace."""
    for table in tables:
        try:
            check_table(provider, table)
        except Busy as busy:
            log.warning("a table could not be checked: table=%s error=%s", table.name, busy)


# ---------------------------------------------------------------- removal


def purge(provider: Provider, now_ms: int, *, keep_ms: int = KEEP_MS) -> int:
    """Remove the rows that are older than ``keep_ms``, step by step, and return how many. Raises Busy."""
    return remove_old(provider, TOKENS, "created_ms", now_ms, keep_ms)


class TokenRetention:
    """Removes old rows in the background: soon after `start`, then once an hour. One for each publisher of a process."""

    def __init__(
        self,
        provider: Provider,
        *,
        keep_ms: int = KEEP_MS,
        every_s: float = CLEAN_EVERY_S,
        first_s: float | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """``first_s``: when it cleans first; None: at a random time within ten minutes, so that many processes spread."""
        self._provider = provider
        self._keep_ms = keep_ms
        self._every_s = every_s
        self._first_s = random.uniform(10, 600) if first_s is None else first_s
        self._clock_ms = clock_ms
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin. Again, it does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="halfmoon-tokens", daemon=True)
            self._thread.start()

    def close(self, wait_s: float = 3) -> None:
        """End, waiting at most so long for what is under way. Again, it does nothing."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(wait_s)

    def _run(self) -> None:
        wait_s = self._first_s
        while not self._ended.wait(wait_s):
            wait_s = self._every_s
            try:
                removed = purge(self._provider, self._clock_ms(), keep_ms=self._keep_ms)
            except Exception as error:
                log.warning("old token rows could not be removed, next try later: error=%r", error)
                continue
            if removed:
                log.info("old token rows removed: count=%d", removed)
