"""Every page and change of the console. To add one: a module here that declares it, and its name in `ALL`."""

from __future__ import annotations

from halfmoon.console.page import Change, Page
from halfmoon.console.pages import audit, batches, cluster, dead_letters, delays, groups, messages, settings, topics, transactions

ALL: tuple[Page | Change, ...] = tuple(
    page
    for module in (cluster, topics, messages, groups, transactions, batches, dead_letters, delays, settings, audit)
    for page in module.PAGES
)
"""In the order of the menu."""
