"""How the cluster is and has been for half an hour. Shows what the sampler knows, and asks nobody."""

from __future__ import annotations

from halfmoon.console.page import Asked, Facts, Page


async def overview(asked: Asked) -> Facts:
    """Return the newest figures and those before them: the same for all who look, until there are newer ones."""
    return asked.services.sampler.facts


PAGES = (
    Page("/", "Overview", "overview.html", overview, menu=True),
    Page("/overview/live", "Overview", "overview_live.html", overview, under="/", fragment=True),
)
