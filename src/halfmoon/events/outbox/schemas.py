"""Outboxes in several schemas of one database: which there are, and a relay's share in each. Sends nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from halfmoon.errors import SettingError, UsageError
from halfmoon.events.databases.database import Provider, Rows, SchemaRows
from halfmoon.events.outbox.backoff import Backoff
from halfmoon.events.outbox.batch import Batch
from halfmoon.events.outbox.claims import Failure
from halfmoon.events.tables import OUTBOX, check_schema, is_schema

EVERY = "*"
SCHEMAS_MAX = 10_000
LIST_EVERY_S = 10.0
"""How often a relay of every schema looks for new ones."""

REST_MIN_S, REST_MAX_S = 0.2, 5.0
"""Wait before a topic, or an outbox, that failed is tried again: at first, and at most."""

log = logging.getLogger("halfmoon.events")

_LISTS = {
    "postgresql": (
        "SELECT n.nspname, c.oid = to_regclass(:name) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relname = :name AND c.relpersistence <> 't' AND c.relkind IN ('r', 'p') "
        "AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') "
        "AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE') ORDER BY 1"
    ),
    "mysql": "SELECT table_schema, table_schema = DATABASE() FROM information_schema.tables WHERE table_name = :name ORDER BY 1",
}
"""Ask in which schemas there is an outbox, and whether it is the one that the database finds."""


def checked(schemas: str | Collection[str] | None) -> tuple[str, ...] | None:
    """Return the schemas that a setting names, None for every one, ``("",)`` for the one that the database finds.

    Raises SettingError.
    """
    if schemas == EVERY:
        return None
    named = ("",) if schemas is None else schemas
    try:
        if isinstance(named, str) or not (found := tuple(dict.fromkeys(check_schema(one) for one in named))):
            raise UsageError("'*' for every schema, or a list of names")
    except (TypeError, UsageError) as error:
        raise SettingError(f"relay setting schemas: {error}") from None
    return found


def listed(provider: Provider, *, others: bool = False) -> list[str]:
    """Return the schemas in which there is an outbox: in PostgreSQL one that may be changed, in MySQL one that may be seen.

    ``others``: but for the provider's own, or the one that the database finds. Raises UsageError for a database that has no
    schemas, and what the database raises.
    """
    if (query := _LISTS.get(provider.dialect)) is None:
        raise UsageError(f"schemas='*': a database of {provider.dialect or 'this kind'} has no schemas, leave it out")
    with provider.fresh() as rows:
        found = {str(schema): bool(here) for schema, here in rows.all(query, {"name": OUTBOX.name})}
    own = getattr(provider, "schema", "")
    return [schema for schema, here in found.items() if not (others and (here or schema == own))]


class Share:
    """Relay's part of the outbox of one schema: the batch that it has sent and not yet noted there, and when it looks again."""

    def __init__(self, provider: Provider, schema: str) -> None:
        self._provider, self.schema = provider, schema
        self.backoff = Backoff(REST_MIN_S, REST_MAX_S)
        self.batch: Batch | None = None
        self.failed: list[Failure] = []
        """Failures of the rows of the batch that could not be sent."""
        self.keeps = False
        """Whether the table of kept events was found: without it nothing is sent."""
        self.retry_at_s = self.look_at_s = self.clean_at_s = 0.0
        """Until when rows wait for another try, and others of their keys behind them; when it looks again, and when it cleans."""

    @property
    def dialect(self) -> str:
        """Dialect of the database."""
        return self._provider.dialect

    @contextmanager
    def fresh(self, *, lock_wait_ms: int | None = 1_000) -> Iterator[Rows]:
        """Return a block as `Provider.fresh` does, for this schema."""
        with self._provider.fresh(lock_wait_ms=lock_wait_ms) as rows:
            yield SchemaRows(rows, self.schema)


class Shares:
    """Shares of a relay: of the schemas that were named, or of every schema that there is at the time."""

    def __init__(self, provider: Provider, schemas: str | Collection[str] | None) -> None:
        self._provider, self._named = provider, checked(schemas)
        if self._named != ("",) and provider.dialect == "sqlite":
            raise SettingError("relay setting schemas: SQLite has no schemas, leave it out")
        self._by_schema = {schema: Share(provider, schema) for schema in self._named or ()}
        self.backoff = Backoff(REST_MIN_S, REST_MAX_S)
        self._list_at_s = 0.0
        self._left_out: set[str] = set()
        self._said_others = False
        self._lock = threading.Lock()

    def all(self) -> list[Share]:
        """Return the shares of the schemas that exist now. Raises the errors of `listed`."""
        with self._lock:
            now_s = time.monotonic()
            if self._named is None and now_s >= self._list_at_s:
                found = self._served(listed(self._provider))
                self._list_at_s = now_s + LIST_EVERY_S
                self._by_schema = {schema: self._by_schema.get(schema) or Share(self._provider, schema) for schema in found}
            return self.known

    @property
    def known(self) -> list[Share]:
        """Shares of the last look."""
        return list(self._by_schema.values())

    def _served(self, found: list[str]) -> list[str]:
        """Return those that statements can name, up to `SCHEMAS_MAX`; say once which others there are."""
        served = [schema for schema in found if is_schema(schema)][:SCHEMAS_MAX]
        if left_out := sorted({*found} - {*served} - self._left_out):
            self._left_out.update(left_out)
            log.warning(
                "outboxes are not served, their schemas cannot be named or are too many: count=%d schemas=%s",
                len(left_out), ", ".join(map(repr, left_out[:20])),
            )  # fmt: skip
        return served

    def say_others(self) -> None:
        """Say once which other schemas have an outbox, where none were named."""
        if self._named == ("",) and self._provider.dialect in _LISTS and not self._said_others:
            self._said_others = True
            if found := listed(self._provider, others=True):
                log.warning(
                    "the relay serves one schema; others have an outbox, name them or '*' (schemas=…) if they are its to serve: "
                    "count=%d schemas=%s",
                    len(found), ", ".join(found[:20]),
                )  # fmt: skip
