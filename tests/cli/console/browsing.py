"""What a browser does with a console that a test has started: log in, keep cookies, send forms. Runs no JavaScript."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Any

import httpx

OWN = "correct horse battery"


class Browser(httpx.Client):
    """A visitor of the console at a URL."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None, headers: dict[str, str] | None = None) -> None:
        verify: Any = True if context is None else context
        super().__init__(base_url=url, verify=verify, headers=headers, timeout=60, trust_env=False)

    def send_form(self, page: str, **fields: str) -> httpx.Response:
        """Send the form of a page as the page has it, with these fields filled in."""
        hidden = re.findall(r'name="csrf" value="([^"]*)"', self.get(page).text)
        return self.post(page, data={"csrf": hidden[-1], **fields})

    def log_in(self, name: str, one_time: str) -> None:
        """Log in with a one-time password and change it."""
        assert self.send_form("/login", name=name, password=one_time).headers["location"] == "/password"
        assert self.send_form("/password", old=one_time, new=OWN, again=OWN).headers["location"] == "/"


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that are not over."""
    found = [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return [child for child in found if is_running(child)]


def is_running(pid: int) -> bool:
    """Whether there is a process, and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
