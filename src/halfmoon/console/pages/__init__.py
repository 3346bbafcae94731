"""Every page and change of the console. To add one: a module here that declares it, and its line in `ALL`."""

from __future__ import annotations

from halfmoon.console.page import Change, Page
from halfmoon.console.pages import clients

ALL: tuple[Page | Change, ...] = (*clients.PAGES,)
"""In the order of the menu."""
