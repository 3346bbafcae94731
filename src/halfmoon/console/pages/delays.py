"""Page of delayed messages with their due times, and cancelling one."""

from __future__ import annotations

from halfmoon.console.page import PAGE_SIZE, Asked, Change, Done, Facts, Page, Question
from halfmoon.console.render import at
from halfmoon.shown.texts import facts_of

SPANS = {60: "minute", 3600: "hour", 86_400: "day"}


async def delays(asked: Asked) -> Facts:
    """Return a page of delayed messages, perhaps of one topic, the next first, and how many wait."""
    page = await asked.admin.delayed_page(topic=asked.text("topic", "") or None, after=asked.after, count_max=PAGE_SIZE)
    facts = facts_of(page)
    return {**facts, "messages": asked.sorted(facts["messages"]), "total": sum(page.by_level.values()), "spans": SPANS}


async def ask_cancel(asked: Asked) -> Facts:
    """Return what cancelling a message does."""
    topic, name, of = asked.text("topic"), asked.text("id"), asked.text("of", "")
    effects = [f"Message {name} to {topic} is never delivered.", "No copy is kept."]
    question = Question(effects, "Cancel the message", {"topic": topic, "id": name, "of": of}, at("/delays", topic=of))
    return {"heading": name, "question": question}


async def cancel(asked: Asked) -> Done:
    """Cancel a message that waits for a point in time."""
    topic, name = asked.text("topic"), asked.text("id")
    await asked.admin.cancel_delayed(topic, name)
    return Done(f"{name} to {topic} is cancelled; it will not be delivered.", at("/delays", topic=asked.text("of", "")))


PAGES = (
    Page("/delays", "Delays", "delays.html", delays, menu="Trouble"),
    Page("/delays/cancel", "Cancel a delayed message", "confirm.html", ask_cancel, under="/delays", operators=True),
    Change("/delays/cancel", cancel, ("topic", "id"), irreversible=True),
)
