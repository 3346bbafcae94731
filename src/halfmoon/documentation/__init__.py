"""Pages of the documentation, in the wheel beside this file, and how errors and helps refer to them.

A clone has the pages in ``docs/``; who has the wheel alone has no such path, but the command `halfmoon docs`.
"""

from __future__ import annotations


def see(page: str) -> str:
    """Return the command that shows a page, as errors and helps name it."""
    return f"halfmoon docs {page}"
