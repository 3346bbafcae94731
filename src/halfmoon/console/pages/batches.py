"""Page of batch transactions: transactional ids at their brokers, their last batches, undecided attempts. Changes nothing."""

from __future__ import annotations

from halfmoon.console.page import Asked, Facts, Page
from halfmoon.shown.texts import facts_of

ATTEMPTS_MAX = 100
"""Most undecided attempts that are shown of one id."""


async def batches(asked: Asked) -> Facts:
    """Return transactional ids, one if the query names it, a row for each broker that takes part; then with its attempts."""
    name = asked.text("id", "") or None
    hidden: list[str] = []
    brokers = await asked.admin.batches(name, failing=hidden)
    rows, more = asked.rows(
        ((status.broker, batch) for status in brokers for batch in status.ids), lambda row: f"{row[0]} {row[1].transactional_id}"
    )
    shown = [
        {
            **facts_of(batch), "broker": broker, "attempts": facts_of(batch.attempts[:ATTEMPTS_MAX]) if name else [],
            "oldest_ms": max((attempt.age_ms for attempt in batch.attempts), default=None),
        }
        for broker, batch in rows
    ]  # fmt: skip
    unsupported = [status.broker for status in brokers if not status.supported]
    return {"batches": shown, "next": more, "unsupported": unsupported, "not_reported": hidden}


PAGES = (Page("/batches", "Batches", "batches.html", batches, menu=True),)
