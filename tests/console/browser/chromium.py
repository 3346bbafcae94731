"""The browser that pages are tested in, what its pages must not do meanwhile, and pictures of them for the documentation."""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Error, Page, Request, ViewportSize, WebError

DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 360, "height": 740}
WITHIN_MS = 30_000
"""How long a page may take for what a test waits for: the machine may be busy."""
IMAGES = Path(__file__).parents[3] / "docs/images"
HERE = ("127.0.0.1", "localhost")
ELSEWHERE = """here => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (text.data.includes(here)) text.data = text.data.replace(new RegExp(here + "[^ ]*", "g"), "/var/lib/halfmoon/commitlog");
  }
}"""
"""Replaces the test's directory in a page: pictures show nothing of the machine that took them."""


def program() -> str | None:
    """Return the browser's program; None where none is installed."""
    return shutil.which("chromium") or shutil.which("google-chrome")


def shot(page: Page, name: str, height: int = DESKTOP["height"]) -> None:
    """Write the page's top, down to its end or so many pixels, to ``docs/images/console-NAME.png``, where ``make pictures``
    asks for it: in 128 colours where Pillow is installed.
    """
    if "CONSOLE_PICTURES" not in os.environ:
        return
    page.evaluate(ELSEWHERE, tempfile.gettempdir())
    end = page.evaluate("document.querySelector('main').getBoundingClientRect().bottom")
    seen = page.screenshot(clip={"x": 0, "y": 0, "width": DESKTOP["width"], "height": min(height, end)}, animations="disabled")
    with suppress(ImportError):
        from PIL import Image  # a dependency of what documents are made with

        picture = io.BytesIO()
        few = Image.open(io.BytesIO(seen)).convert("RGB").quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(picture, "PNG", optimize=True)
        seen = picture.getvalue()
    (IMAGES / f"console-{name}.png").write_bytes(seen)


class Watch:
    """Collects what pages must not do: script errors, errors in the console (what the Content-Security-Policy forbids, and answers
    from 400 on, stand there too), failed requests, requests to other machines, dialogs.

    Dialogs are dismissed. A request that the page itself gives up, as when it is left, is no fault.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._expected: list[str] = []
        self._contexts: list[BrowserContext] = []

    def expect(self, pattern: str) -> None:
        """Say what must happen in this test: at least one fault in which ``pattern``, a regular expression, is found."""
        self._expected.append(pattern)

    def follow(self, context: BrowserContext) -> None:
        """Watch all pages of a context."""
        self._contexts.append(context)
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        context.on("dialog", self._on_dialog)
        context.on("request", self._on_request)
        context.on("requestfailed", self._on_failed)

    def check(self) -> None:
        """Raise AssertionError for what happened unexpectedly, and for what was expected and did not happen."""
        for page in [page for context in self._contexts for page in context.pages]:
            with suppress(Error):  # a page that was just left
                page.evaluate("0")  # what it did before has been told by then
        unexpected = [fault for fault in self.faults if not _matching(self._expected, fault)]
        missing = [pattern for pattern in self._expected if not any(re.search(pattern, fault) for fault in self.faults)]
        assert not unexpected, "the page did what it must not: " + "; ".join(unexpected)
        assert not missing, "did not happen: " + "; ".join(missing)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(f"console: {message.text} ({message.location['url']})")

    def _on_error(self, error: WebError) -> None:
        self.faults.append(f"script error: {error.error}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.type} {dialog.message!r}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme.startswith(("http", "ws")) and url.hostname not in HERE:
            self.faults.append(f"request to another machine: {request.url}")

    def _on_failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":
            self.faults.append(f"request failed: {request.failure} {request.url}")


def _matching(patterns: Sequence[str], fault: str) -> bool:
    return any(re.search(pattern, fault) for pattern in patterns)
