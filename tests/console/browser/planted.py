"""Pages that do what they must not, and some that do not: `test_chromium` runs this file as tests, and knows which must fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from playwright.sync_api import Page, expect

from tests.console.browser.chromium import Watch

PAGES = {
    "/favicon.ico": "",
    "/plain": "<title>plain</title><h1>Plain</h1><form><button>Send</button></form>",
    "/error": "<h1>Error</h1><script>null.length</script>",
    "/late": "<h1>Late</h1><button onclick='setTimeout(() => { throw Error(`late`) })'>Go</button>",
    "/said": "<h1>Said</h1><script>console.error('half done'); console.warn('no matter')</script>",
    "/dialog": "<h1>Dialog</h1><script>alert('hello'); document.title = 'after'</script>",
    "/forbidden": "<h1>Forbidden</h1><script>document.title = 'ran'</script><p style='color: red'>Red</p>",
    "/incomplete": "<h1>Incomplete</h1><script src='/missing.js'></script>",
    "/elsewhere": "<h1>Elsewhere</h1><img src='http://example.com/counted.png' alt=''>",
    "/refused": "<h1>Refused</h1><script>fetch('http://127.0.0.1:9/').catch(() => { document.title = 'refused' })</script>",
    "/slow": "<h1>Slow</h1><script>fetch('/never')</script>",
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = PAGES.get(self.path, "<h1>Not found</h1>").encode()
        self.send_response(200 if self.path in PAGES else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if self.path == "/forbidden":
            self.send_header("Content-Security-Policy", "default-src 'none'")
        if self.path != "/never":
            self.end_headers()
            self.wfile.write(body)
        else:
            self.rfile.read()  # until the browser gives up

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of `PAGES`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_plain(page: Page, phone: Page, site: str) -> None:
    for one in (page, phone):
        one.goto(f"{site}/plain")
        expect(one.get_by_role("heading", name="Plain")).to_be_visible()
    facts = "[innerWidth, navigator.language, new Date(0).getHours(), matchMedia('(prefers-reduced-motion)').matches]"
    assert page.evaluate(facts) == [1280, "en-US", 0, True]
    assert phone.evaluate(facts) == [360, "en-US", 0, True]


def test_visitors(open_page: Callable[..., Page], site: str) -> None:
    one, other = open_page(), open_page()
    for each in (one, other):
        each.goto(f"{site}/plain")
    one.evaluate("document.cookie = 'session=1'")
    assert (one.evaluate("document.cookie"), other.evaluate("document.cookie")) == ("session=1", "")


def test_left(page: Page, site: str) -> None:
    with page.expect_request("**/never"):
        page.goto(f"{site}/slow")
    page.goto(f"{site}/plain")


def test_expected(page: Page, site: str, watch: Watch) -> None:
    watch.expect("404")
    answer = page.goto(f"{site}/unknown")
    assert answer is not None
    assert answer.status == 404


def test_expected_dialog(page: Page, site: str, watch: Watch) -> None:
    watch.expect("dialog: alert 'hello'")
    page.goto(f"{site}/dialog")
    expect(page).to_have_title("after")


def test_not_happened(page: Page, site: str, watch: Watch) -> None:
    watch.expect("dialog")
    page.goto(f"{site}/plain")


@pytest.mark.parametrize("name", ["error", "said", "dialog", "forbidden", "incomplete", "elsewhere", "unknown"])
def test_fault(page: Page, site: str, name: str) -> None:
    page.goto(f"{site}/{name}")


def test_refused(page: Page, site: str) -> None:
    page.goto(f"{site}/refused")
    expect(page).to_have_title("refused")


def test_late(page: Page, site: str) -> None:
    page.goto(f"{site}/late")
    page.get_by_role("button", name="Go").click()
