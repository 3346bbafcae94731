"""Who is connected: producers and consumers, with their groups, versions and brokers."""

from __future__ import annotations

from halfmoon.console.page import Asked, Facts, Page


async def clients(asked: Asked) -> Facts:
    """Return connected clients, of one group if the query names it."""
    listed = await asked.admin.clients(asked.text("group", "") or None)
    rows, more = asked.rows(listed.clients)
    hidden = [f"producers of groups that are not named, at {address}" for address in listed.without_producers]
    return {"clients": rows, "next": more, "not_reported": hidden}


PAGES = (Page("/clients", "Clients", "clients.html", clients, menu=True),)
