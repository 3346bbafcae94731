"""A console as an operator runs it: a process over a cluster, users made by command, and pages of those who are logged in."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from playwright.sync_api import Locator, Page

from tests.cli.console.browsing import Browser

STOP_S = 60.0
TABS_MAX = 200
NAMES = {"operator": "ada", "viewer": "vera"}


class Console:
    """`halfmoon console` over a cluster, on a free port: a context manager. ``url`` is where it is."""

    def __init__(self, nameserver: str, data: Path) -> None:
        self.nameserver, self.data = nameserver, data
        self._cookies: dict[str, str] = {}
        self._process = subprocess.Popen(
            [*HALFMOON, "console", "-n", nameserver, "--port", "0", "--data", str(data), "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = str(json.loads(self._process.stdout.readline())["url"])
        self.cookie_name = f"halfmoon-{self.url.rpartition(':')[2]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=STOP_S)

    def command(self, line: str) -> Any:
        """Run a command about this console's users, and return what it answers."""
        words = [*HALFMOON, *shlex.split(line.removeprefix("halfmoon ")), "--data", str(self.data), "--json"]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=STOP_S, check=True)
        return json.loads(ran.stdout)

    def cookie(self, name: str, role: str) -> str:
        """Return the cookie of a session of a user, who is made and logged in when it is asked for first."""
        if name not in self._cookies:
            added = self.command(f"console user add {name} --role {role}")
            with Browser(self.url) as browser:
                browser.log_in(name, added["password"])
                browser.get("/")  # which says that the password is changed, once
                self._cookies[name] = browser.cookies[self.cookie_name]
        return self._cookies[name]


HALFMOON = (sys.executable, "-m", "halfmoon.cli.main")


class Visit:
    """Opens pages of the console for users who are logged in, each with cookies of its own; takes options of ``new_context``."""

    def __init__(self, console: Console, open_page: Callable[..., Page]) -> None:
        self._console, self._open_page = console, open_page

    def __call__(self, path: str = "/", *, name: str = "", role: str = "operator", **options: Any) -> Page:
        page = self._open_page(base_url=self._console.url, **options)
        cookie = self._console.cookie(name or NAMES[role], role)
        page.context.add_cookies([{"name": self._console.cookie_name, "value": cookie, "url": self._console.url}])
        page.goto(path)
        return page


def menu(page: Page) -> Locator:
    """Return the menu of a page."""
    return page.get_by_role("navigation", name="Pages")


def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(TABS_MAX):
        if wanted.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {wanted}")
