"""A real browser for the tests of a module, and a fresh visitor for each test; what the page must not do fails the test.

Playwright's blocking interface keeps an event loop running in the thread of the tests while the browser is open: no test of such a
module may be ``async``, and it is closed with the module. The browser resolves no names, so no page reaches another machine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from halfmoon.testing.local import LocalCluster
from tests.console.browser.chromium import DESKTOP, PHONE, WITHIN_MS, Watch, program
from tests.console.browser.running import Console, Visit
from tests.console.browser.shop import Shop

VISITOR: dict[str, Any] = {
    "locale": "en-US",
    "timezone_id": "UTC",
    "reduced_motion": "reduce",
    "color_scheme": "light",
    "viewport": DESKTOP,
}
expect.set_options(timeout=WITHIN_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    found = program()
    if found is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    offline = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=found, args=[offline]) as running:
        yield running


@pytest.fixture
def watch() -> Watch:
    """What the test's pages did and must not; ``watch.expect("403")`` where the test is about it."""
    return Watch()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Let a test fail for what its pages did."""
    yield
    if isinstance(watch := getattr(item, "funcargs", {}).get("watch"), Watch):
        watch.check()


@pytest.fixture
def open_page(browser: Browser, watch: Watch) -> Iterator[Callable[..., Page]]:
    """Opens a page for another visitor, with cookies of its own; takes the options of Playwright's ``new_context``."""
    contexts: list[BrowserContext] = []

    def opened(**options: Any) -> Page:
        contexts.append(browser.new_context(**{**VISITOR, **options}))
        contexts[-1].set_default_timeout(WITHIN_MS)
        watch.follow(contexts[-1])
        return contexts[-1].new_page()

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def page(open_page: Callable[..., Page]) -> Page:
    """A page of 1280 x 800 pixels."""
    return open_page()


@pytest.fixture
def phone(open_page: Callable[..., Page]) -> Page:
    """A page as wide as a small telephone: 360 x 740 pixels, touched instead of clicked."""
    return open_page(viewport=PHONE, has_touch=True)


@pytest.fixture(scope="module")
def console(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A console process over the cluster of the module."""
    with Console(cluster.nameserver, tmp_path_factory.mktemp("console")) as running:
        yield running


@pytest.fixture
def visit(console: Console, open_page: Callable[..., Page]) -> Visit:
    """Opens a page of the console for a user who is logged in: an operator unless said otherwise."""
    return Visit(console, open_page)


@pytest.fixture(scope="module")
def shop(cluster: LocalCluster) -> Iterator[Shop]:
    """A shop at the cluster of the module."""
    with Shop(cluster.nameserver) as running:
        yield running
