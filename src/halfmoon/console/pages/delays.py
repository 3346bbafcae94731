"""Page of delayed messages with their due times, and cancelling one."""

from __future__ import annotations

from halfmoon.console.page import PAGE_SIZE, Asked, Change, Done, Facts, Page
from halfmoon.console.render import at
from halfmoon.shown.texts import facts_of

SPANS = {60: "minute", 3600: "hour", 86_400: "day"}


async def delays(asked: Asked) -> Facts:
    """Return a page of delayed messages, perhaps of one topic, the next first, and how many wait."""
    page = await asked.admin.delayed_page(topic=asked.text("topic", "") or None, after=asked.after, count_max=PAGE_SIZE)
    return {**facts_of(page), "total": sum(page.by_level.values()), "spans": SPANS}


async def cancel(asked: Asked) -> Done:
    """Cancel a message that waits for a point in time."""
    topic, name = asked.text("topic"), asked.text("id")
    await asked.admin.cancel_delayed(topic, name)
    return Done(f"{name} to {topic} is cancelled; it will not be delivered.", at("/delays", topic=asked.text("of", "")))


PAGES = (
    Page("/delays", "Delays", "delays.html", delays, menu=True),
    Change("/delays/cancel", cancel, ("topic", "id")),
)
