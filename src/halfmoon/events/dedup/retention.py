"""Ids of processed events that are too old are removed, from time to time, beside the consumers."""

from __future__ import annotations

import asyncio
import logging
import random
import time

from halfmoon.events.dedup import Ledger, purge

EVERY_S = 3_600.0
FIRST_S = 60.0
"""After a start, at most: many processes that start together do not all begin at once."""

log = logging.getLogger("halfmoon.events")


async def keep_purging(ledgers: list[Ledger], keep_s: int, *, first_s: float = FIRST_S, every_s: float = EVERY_S) -> None:
    """Remove what is older than ``keep_s`` once an hour, until cancelled. What fails is logged, and tried again then."""
    await asyncio.sleep(random.uniform(0, first_s))
    while True:
        for ledger in {id(one): one for one in ledgers}.values():
            try:
                removed = await asyncio.to_thread(purge, ledger.provider, time.time_ns() // 1_000_000, keep_s)
            except Exception as exc:
                log.warning("old ids of processed events are still there: reason=%s", exc)
            else:
                if removed:
                    log.info("old ids of processed events removed: count=%d", removed)
        await asyncio.sleep(every_s)
