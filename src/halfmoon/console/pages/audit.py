"""Page of the audit log: user, address, change and outcome. For operators."""

from __future__ import annotations

import asyncio

from msgspec.structs import asdict

from halfmoon.console.access.audit import AuditEntry
from halfmoon.console.page import PAGE_SIZE, Asked, Facts, Page


async def audit(asked: Asked) -> Facts:
    """Return entries of the log, the newest first. ``next``: the id of the last, where the next rows begin."""
    after = asked.number("after", 2**63 - 1)
    found = await asyncio.to_thread(asked.services.audit.read, PAGE_SIZE + 1, after)
    rows = found[:PAGE_SIZE]
    return {"entries": asked.sorted([_row(entry) for entry in rows]), "next": rows[-1].id if len(found) > PAGE_SIZE else None}


def _row(entry: AuditEntry) -> Facts:
    fields = dict(entry.fields)
    reason = fields.pop("reason", "")
    texts = ", ".join(f"{name}: {value}" for name, value in fields.items())
    times = f" ({entry.times} times)" if entry.times > 1 else ""
    return {**asdict(entry), "reason": reason, "details": texts, "outcome": f"{entry.outcome}{times}"}


PAGES = (Page("/audit", "Audit", "audit.html", audit, menu="Cluster", operators=True),)
