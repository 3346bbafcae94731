"""What keeps people from a page who use no mouse, see badly, listen to it, or have a small screen: faults, in words. No network.

Follows WCAG 2.2, level AA, in what a program can see: language, title, headings, names and labels, headers of tables, contrast in
both colour schemes, width, and the way through the page by Tab. Differs: large texts need a contrast of 4.5, too; pictures behind
texts are not looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from playwright.sync_api import Page

from tests.console.browser.chromium import PHONE

SCRIPT = Path(__file__).with_name("accessibility.js").read_text()
WALKS_MAX = 10
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def faults(page: Page) -> list[str]:
    """Return what is wrong with the page as it stands; empty when nothing is. Moves the focus, and presses nothing but Tab."""
    page.evaluate(SCRIPT)
    found: list[str] = page.evaluate("audit.structure()")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        found += [f"{scheme}: {fault}" for fault in page.evaluate("audit.contrast()")]
    page.emulate_media(color_scheme="null")  # the context's own
    size = page.viewport_size
    page.set_viewport_size(PHONE)
    found += page.evaluate("audit.overflow()")
    if size is not None:
        page.set_viewport_size(size)
    return found + _walked(page)


def _walked(page: Page) -> list[str]:
    """Go through the page by Tab, again where it renewed a part of itself meanwhile, and return what is wrong with the way."""
    for _ in range(WALKS_MAX):
        for _ in range(page.evaluate("audit.start()")):
            page.keyboard.press("Tab")
        found: list[str] | None = page.evaluate("audit.end()")
        if found is not None:
            return found
    return [f"the page renewed a part of itself in each of {WALKS_MAX} walks by Tab"]
