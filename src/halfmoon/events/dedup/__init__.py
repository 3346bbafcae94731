"""Deduplication: the ids of processed events, kept in `halfmoon_consumed` by the transaction in which an event is processed.

A ledger opens a transaction, notes (group, topic, event id) in it, and lends it to the consumer's function; both are committed or
neither. A consumer that gets the same event again finds the id there, or waits for the transaction that is about to write it. Old
rows are removed in bounded steps; an event that comes again after its row was removed is processed again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Any

from halfmoon.events.checks import tokens
from halfmoon.events.databases.database import Provider
from halfmoon.events.databases.registry import provider_of
from halfmoon.events.databases.retention import remove_old
from halfmoon.events.dedup.ledger import ConsumedLedger
from halfmoon.events.tables import CONSUMED

KEEP_S = 7 * 24 * 3600
"""Default of the seconds that ids are kept: brokers keep messages for three days, redeliveries take five hours."""

EVERY_S = 3_600.0
FIRST_S = 60.0
"""After a start, at most: many processes that start together do not all begin at once."""

log = logging.getLogger("halfmoon.events")


def ledger_of(dedup: Any) -> ConsumedLedger:
    """Return the ledger in the database of a consumer's ``dedup``. Raises UsageError for a thing of no database."""
    return ConsumedLedger(provider_of(dedup, "dedup"))


def create_tables(provider: Provider) -> None:
    """Create the table of processed events if it is missing, and migrate one of an older release.

    Raises Busy, and the errors of the database.
    """
    tokens.create_tables(provider, (CONSUMED,))


def require_table(ledger: ConsumedLedger) -> None:
    """Raise TableMissing or TableOutdated, with the remedy, unless the table is there or the database does not answer now."""
    tokens.require(ledger.provider, (CONSUMED,))


def purge(provider: Provider, now_ms: int, keep_s: int = KEEP_S) -> int:
    """Remove the ids of events processed more than ``keep_s`` ago, step by step; return how many. Raises Busy."""
    return remove_old(provider, CONSUMED, "consumed_ms", now_ms, keep_s * 1000)


async def keep_purging(ledgers: list[ConsumedLedger], keep_s: int, *, first_s: float = FIRST_S, every_s: float = EVERY_S) -> None:
    """Remove old ids once an hour, until cancelled. A failure is logged, and the next hour tries again."""
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
