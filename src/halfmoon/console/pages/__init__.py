"""Every page and change of the console. To add one: a module here that declares it, and its line in `ALL`."""

from __future__ import annotations

from halfmoon.console.page import Change, Page
from halfmoon.console.pages import (
    audit,
    batches,
    brokers,
    clients,
    dead_letters,
    delays,
    groups,
    messages,
    overview,
    settings,
    topics,
    transactions,
)

ALL: tuple[Page | Change, ...] = (
    *overview.PAGES,
    *topics.PAGES,
    *messages.PAGES,
    *groups.PAGES,
    *transactions.PAGES,
    *batches.PAGES,
    *dead_letters.PAGES,
    *delays.PAGES,
    *clients.PAGES,
    *brokers.PAGES,
    *settings.PAGES,
    *audit.PAGES,
)
"""In the order of the menu."""
