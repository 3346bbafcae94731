"""Every page and change of the console. To add one: a module here that declares it, and its name in `ALL`."""

from __future__ import annotations

from halfmoon.console.page import Change, Page
from halfmoon.console.pages import audit, cluster, dead_letters, delays, groups, messages, send, settings, topics, transactions

ALL: tuple[Page | Change, ...] = (
    *cluster.OVERVIEW, *topics.PAGES, *messages.PAGES, *send.PAGES, *groups.PAGES, *transactions.PAGES, *dead_letters.PAGES,
    *delays.PAGES, *transactions.BATCHES, *cluster.PAGES, *settings.PAGES, *audit.PAGES,
)  # fmt: skip
"""Modules in the order of the menu."""
