"""Page of the audit log: user, address, change and outcome. For operators."""

from __future__ import annotations

import asyncio

from halfmoon.console.page import PAGE_SIZE, Asked, Facts, Page


async def audit(asked: Asked) -> Facts:
    """Return entries of the log, the newest first. ``next``: the id of the last, where the next rows begin."""
    after = asked.number("after", 2**63 - 1)
    found = await asyncio.to_thread(asked.services.audit.read, PAGE_SIZE + 1, after)
    rows = found[:PAGE_SIZE]
    return {"entries": rows, "next": rows[-1].id if len(found) > PAGE_SIZE else None}


PAGES = (Page("/audit", "Audit", "audit.html", audit, menu=True, operators=True),)
