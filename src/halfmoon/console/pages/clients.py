"""Who is connected: producers and consumers, with their groups, versions and brokers."""

from __future__ import annotations

from halfmoon.console.page import PAGE_SIZE, Asked, Facts, Page


async def clients(asked: Asked) -> Facts:
    """Return connected clients, of one group if the query names it. ``next``: where the next rows begin."""
    start = asked.number("after", 0)
    listed = await asked.admin.clients(asked.text("group", "") or None)
    rows = listed.clients[start : start + PAGE_SIZE]
    more = start + PAGE_SIZE < len(listed.clients)
    hidden = [f"producers of groups that are not named, at {address}" for address in listed.without_producers]
    return {"clients": rows, "next": str(start + PAGE_SIZE) if more else None, "first": start == 0, "without_producers": hidden}


PAGES = (Page("/clients", "Clients", "clients.html", clients, menu=True),)
