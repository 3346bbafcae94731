"""The tutorials, followed from an empty directory with a real broker, real processes and, where they say so, a PostgreSQL."""

from __future__ import annotations

import http.cookiejar
import re
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from halfmoon.testing.local import LocalCluster
from tests.docs.reader import Reader, in_order
from tests.events.real_databases import postgres_server, postgres_url
from tests.interop.process import free_port
from tests.waiting import until

__all__ = ["postgres_server", "postgres_url"]

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "store") as found:
        yield found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "reader"
    found.mkdir()
    return found


def test_fastapi_with_postgresql_and_alembic(cluster: LocalCluster, directory: Path, postgres_url: str):
    for package in ("fastapi", "uvicorn", "asyncpg", "alembic"):
        pytest.importorskip(package)
    if shutil.which("curl") is None:
        pytest.skip("curl, with which the page sends its requests, is not installed")
    instead = {
        "127.0.0.1:9876": cluster.nameserver,
        "8000": str(free_port()),
        "postgresql+asyncpg://shop:secret@127.0.0.1/shop": postgres_url.replace("+psycopg", "+asyncpg"),
    }
    with Reader(directory, instead) as reader:
        reader.follow("docs/tutorials/fastapi.md")

        mails = "".join(job.written() for job in reader.jobs[2:])
    assert re.findall("^Dear.*", mails, re.M) == ["Dear Ann, Dune is yours.", "Dear Bob, Momo is yours."]


def test_django(cluster: LocalCluster, directory: Path):
    pytest.importorskip("django")
    port = free_port()
    with Reader(directory, {"127.0.0.1:9876": cluster.nameserver, "8000": str(port)}) as reader:
        reader.follow("docs/tutorials/django.md")
        admin = Admin(port)
        admin.post("login", username="ada", password="secret")
        admin.post("shop/order/add", book="Emil", customer="Bob")
        until(lambda: admin.look("shop/order/").count("icon-yes") == 2, "both orders to be mailed")

        assert in_order(["Dear Ann, your book", "Dear Bob, your book"], reader.jobs[2].written())
        assert "3 tokens" in admin.look("halfmoon_events/token/")  # of both orders, and the tombstone of the declined one
        assert "2 consumed events" in admin.look("halfmoon_events/consumed/")
        assert "nobody" not in admin.look("shop/order/")


def test_asyncio(cluster: LocalCluster, directory: Path):
    pytest.importorskip("aiosqlite")
    with Reader(directory, {"127.0.0.1:9876": cluster.nameserver}) as reader:
        reader.follow("docs/tutorials/asyncio.md")
        printed = reader.jobs[1].written().splitlines()

    assert sorted(printed) == ["paid crash", "paid o-0", "paid o-1", "paid o-2", "paid o-3", "ready", "stopped"]
    assert printed[-1] == "stopped"


class Admin:
    """Django's admin, as a browser sees it."""

    def __init__(self, port: int) -> None:
        self._cookies = http.cookiejar.CookieJar()
        self._browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self._cookies))
        self._place = f"http://127.0.0.1:{port}/admin"
        until(self._answers, "the web server")

    def _answers(self) -> bool:
        try:
            return "log in" in self.look("login/").lower()
        except OSError:
            return False

    def look(self, path: str, fields: dict[str, str] | None = None) -> str:
        sent = None if fields is None else urllib.parse.urlencode(fields).encode()
        with closing(self._browser.open(f"{self._place}/{path}", sent, timeout=60)) as answer:
            return str(answer.read().decode())

    def post(self, path: str, **fields: str) -> None:
        self.look(f"{path}/")
        token = next(cookie.value for cookie in self._cookies if cookie.name == "csrftoken")
        answer = self.look(f"{path}/", {**fields, "csrfmiddlewaretoken": str(token), "next": "/admin/"})
        assert "errornote" not in answer, answer
