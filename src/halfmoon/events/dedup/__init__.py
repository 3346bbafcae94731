"""No effect twice: which events were processed, kept in `halfmoon_consumed` by the transaction in which an event is processed.

A ledger opens a transaction, notes (group, topic, event id) in it, and lends it to the consumer's function; both are committed or
neither.
Whoever gets the same event again finds the id there, or waits for the transaction that is about to write it. Rows older than what
is kept are removed in bounded steps; an event that comes again later than that is processed again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from importlib import import_module
from typing import Any

from halfmoon.errors import UsageError
from halfmoon.events.aio import AsyncProvider
from halfmoon.events.checks import tokens
from halfmoon.events.databases.database import Provider
from halfmoon.events.databases.retention import remove_old
from halfmoon.events.dbapi import DbapiProvider
from halfmoon.events.dedup import aio, dbapi
from halfmoon.events.dedup.ledger import AsyncTransactionLedger, Ledger, ProviderLedger, TransactionLedger
from halfmoon.events.tables import CONSUMED

KEEP_S = 7 * 24 * 3600
"""Seconds that ids are kept unless told otherwise: brokers keep messages for three days, redeliveries take five hours."""

EVERY_S = 3_600.0
FIRST_S = 60.0
"""After a start, at most: many processes that start together do not all begin at once."""

log = logging.getLogger("halfmoon.events")


def ledger_of(dedup: Any) -> Ledger:
    """Return the ledger that a consumer's ``dedup`` names. Raises UsageError for what is none of the kinds it may be."""
    if isinstance(dedup, str):
        return _of_django(dedup)
    ledger: Ledger | None = None
    if "sqlalchemy.orm" in sys.modules:  # an extra, imported for who uses it only: who has a sessionmaker has loaded it
        ledger = import_module("halfmoon.events.dedup.sqlalchemy").ledger(dedup)
    if ledger is None and all(callable(getattr(dedup, name, None)) for name in ("fresh", "rows", "current")):
        if isinstance(dedup, AsyncProvider):
            return AsyncTransactionLedger(dedup, lambda: aio.begin(dedup))
        ledger = TransactionLedger(dedup, lambda: dbapi.begin(dedup)) if isinstance(dedup, DbapiProvider) else ProviderLedger(dedup)
    if ledger is None:
        raise UsageError(
            f"dedup={dedup!r:.60}: give a sessionmaker, async_sessionmaker, Engine, the alias of a Django database or a provider"
        )
    return ledger


def _of_django(alias: str) -> Ledger:
    if not alias.isidentifier():  # an address would have a password
        raise UsageError("dedup= is a text but not the alias of a Django database: give a sessionmaker on that database instead")
    try:
        module = import_module("halfmoon.events.dedup.django")
    except ImportError as exc:
        raise UsageError(f"dedup={alias!r:.60} is the alias of a Django database: pip install 'halfmoon[django]' ({exc})") from exc
    made: Ledger = module.ledger(alias)
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


async def keep_purging(ledgers: list[Ledger], keep_s: int, *, first_s: float = FIRST_S, every_s: float = EVERY_S) -> None:
    """Remove what is older than ``keep_s`` once an hour, until cancelled. What fails is logged, and tried again then."""
    await asyncio.sleep(random.uniform(0, first_s))
    while True:
        for ledger in {id(ledger): ledger for ledger in ledgers}.values():
            try:
                removed = await asyncio.to_thread(purge, ledger.provider, time.time_ns() // 1_000_000, keep_s)
            except Exception as exc:
                log.warning("old ids of processed events could not be removed: reason=%s", exc)
            else:
                if removed:
                    log.info("old ids of processed events removed: count=%d", removed)
        await asyncio.sleep(every_s)
