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

ALL: tuple[Page | Change, ...] = tuple(
    page
    for module in (
        overview,
        topics,
        messages,
        groups,
        transactions,
        batches,
        dead_letters,
        delays,
        clients,
        brokers,
        settings,
        audit,
    )
    for page in module.PAGES
)
"""In the order of the menu."""
