"""`site`: the console in this process over a real broker, with an operator logged in. `visitor` logs in further users."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from halfmoon.client.admin import AsyncAdmin
from halfmoon.console.access.attempts import Attempts
from halfmoon.console.access.audit import Audit
from halfmoon.console.access.database import now_ms
from halfmoon.console.access.sessions import Sessions
from halfmoon.console.access.users import Users
from halfmoon.console.app import Console
from halfmoon.console.page import ConsoleServices
from halfmoon.console.pages import ALL
from halfmoon.console.sampler import Sampler
from halfmoon.testing.local import LocalCluster

URL = "http://console.test"


class Site:
    """The console as one browser sees it. Use only within its event loop."""

    def __init__(self, services: ConsoleServices, nameserver: str) -> None:
        self.services, self.nameserver, self.admin = services, nameserver, services.admin
        transport = httpx.ASGITransport(Console(services, ALL), raise_app_exceptions=True, client=("127.0.0.1", 4711))
        self.http = httpx.AsyncClient(transport=transport, base_url=URL)
        self.csrf = ""

    def log_in(self, name: str, role: str = "operator") -> None:
        """Make a user with a password of its own where there is none of the name, and be logged in as that user."""
        users = self.services.users
        if users.get(name) is None:
            users.add(name, role)
            users.change_password(name, f"long password of {name}")
        user = users.get(name)
        assert user is not None
        token, session = self.services.sessions.open(user)
        self.http.cookies.set("halfmoon", token)
        self.csrf = session.csrf

    def answers(self, **questions: Any) -> None:
        """Have the admin client answer these of its methods as the test says."""
        for name, answer in questions.items():
            setattr(self.admin, name, answer)

    async def get(self, path: str, **query: str) -> httpx.Response:
        """Ask for a page."""
        return await self.http.get(path, params=query)

    async def text(self, path: str, **query: str) -> str:
        """Return the HTML of a page that is there."""
        answer = await self.get(path, **query)
        assert answer.status_code == 200, answer.text
        return answer.text

    async def json(self, path: str, **query: str) -> Any:
        """Return the JSON twin of a page that is there."""
        answer = await self.get("/overview.json" if path == "/" else f"{path}.json", **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, *, once: str | None = None, follow: bool = True, **fields: Any) -> httpx.Response:
        """Send a form as a page of this session would, and follow to the page that says what was done."""
        sent = {"csrf": self.csrf, "once": once or f"form-{now_ms()}-{id(fields)}", **fields}
        return await self.http.post(path, data=sent, headers={"Origin": URL}, follow_redirects=follow)

    def said(self, answer: httpx.Response) -> str:
        """Return what a page says was done, or went wrong: as text, with markup undone."""
        found = re.search(r'<p class="(?:notice|error)"[^>]*>(.*?)</p>', answer.text, re.DOTALL)
        return "" if found is None else unescape(found[1])


@pytest.fixture
async def site(cluster: LocalCluster, tmp_path: Path) -> AsyncIterator[Site]:
    """The console over the broker of the tests, with the operator ``admin`` logged in. Hashes are cheap: else they take most of the
    time."""
    async with site_of(tmp_path, nameserver=cluster.nameserver) as site:
        yield site


@asynccontextmanager
async def site_of(directory: Path, **settings: Any) -> AsyncIterator[Site]:
    """Yield the console whose administration client has these settings, with the operator ``admin`` logged in."""
    async with AsyncAdmin(**settings) as admin:
        users = Users(directory, now_ms, scrypt_n=16)
        services = ConsoleServices(
            admin, Sampler(admin), users, Sessions(now_ms), Attempts(now_ms),
            Audit(directory, now_ms),
        )  # fmt: skip
        site = Site(services, settings["nameserver"])
        site.log_in("admin")
        async with site.http:
            yield site
