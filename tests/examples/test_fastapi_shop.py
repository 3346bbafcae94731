"""examples/fastapi_shop: a real uvicorn, a real broker, a SQLite file; orders by HTTP; processes that are killed."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from halfmoon import Admin
from halfmoon.testing.local import LocalCluster
from tests.waiting import until

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("aiosqlite")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fastapi_shop"
HERE = Path(__file__).resolve().parent
CHECKS = {"transactionTimeOut": 1_000, "transactionCheckInterval": 200}
"""The broker asks soon."""
WAIT_S = 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "store", CHECKS) as found:
        with Admin(nameserver=found.nameserver) as admin:
            admin.create_topic("TP_ORDER", queue_count=2)
        yield found


class Shop:
    """A uvicorn process that serves the shop; with ``dies`` one that ends itself there."""

    def __init__(self, cluster: LocalCluster, database: Path, dies: str = "") -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        self.client = httpx.Client(base_url=f"http://localhost:{port}", timeout=60)
        app = "dying_shop:app" if dies else "shop.app:app"
        environment = {
            **os.environ,
            "SHOP_DATABASE": f"sqlite+aiosqlite:///{database}",
            "SHOP_NAMESERVER": cluster.nameserver,
            "SHOP_DIES": dies,
            "PYTHONPATH": os.pathsep.join([str(EXAMPLE), str(HERE), *filter(None, sys.path)]),
        }
        command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--log-level", "warning"]
        self.process = subprocess.Popen(command, env=environment)

    def __enter__(self) -> Self:
        until(self._answers)
        return self

    def _answers(self) -> bool:
        assert self.process.poll() is None, "the shop ended"
        try:
            return self.client.get("/mails").status_code == 200
        except httpx.TransportError:
            return False

    def __exit__(self, *error: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()

    def deliver(self, title: str, stock: int) -> None:
        assert self.client.put("/books", json={"title": title, "stock": stock}).status_code == 200

    def order(self, title: str, customer: str) -> httpx.Response:
        return self.client.post("/orders", json={"title": title, "customer": customer})

    def mailed(self) -> list[int]:
        return [mail["order_id"] for mail in self.client.get("/mails").json()]


def rows(database: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(database)) as connection:
        return [row[0] for row in connection.execute(query)]


def settled(cluster: LocalCluster) -> bool:
    with Admin(nameserver=cluster.nameserver) as admin:
        return not admin.pending_transactions(group="P_shop")


@pytest.mark.slow
@pytest.mark.mission("002-52")
def test_an_order_is_mailed_if_and_only_if_it_is_in_the_database(cluster: LocalCluster, tmp_path: Path):
    database = tmp_path / "shop.db"
    with Shop(cluster, database) as shop:
        shop.deliver("Dune", 2)
        answers = [shop.order("Dune", customer) for customer in ("Ann", "Bob", "Cid")]
        until(lambda: len(shop.mailed()) == 2)
        until(lambda: settled(cluster))

        assert [answer.status_code for answer in answers] == [201, 201, 409]
        assert sorted(shop.mailed()) == rows(database, "select id from orders order by id") == [1, 2]
        assert shop.client.get("/mails").json()[0]["text"].endswith("Dune is yours.")
        shop.process.terminate()
        assert shop.process.wait(60) in (0, -15), "uvicorn ends by the signal, after the lifespan"


@pytest.mark.slow
@pytest.mark.mission("002-52", "002-12")
@pytest.mark.parametrize(("dies", "orders"), [("after commit", [1]), ("before commit", [])])
def test_after_a_kill_the_process_that_comes_next_answers_the_check(
    cluster: LocalCluster, tmp_path: Path, dies: str, orders: list[int]
):
    database = tmp_path / "shop.db"
    with Shop(cluster, database) as shop:
        shop.deliver("Dune", 5)
    with Shop(cluster, database, dies) as shop:
        with pytest.raises(httpx.TransportError):
            shop.order("Dune", "Ann")
        assert shop.process.wait(10) == -9
    assert rows(database, "select id from orders") == orders
    assert rows(database, "select id from mails") == []
    assert not settled(cluster), "the broker waits to hear how it ended"

    with Shop(cluster, database) as shop:
        until(lambda: settled(cluster))
        assert shop.order("Dune", "Bob").status_code == 201
        until(lambda: len(shop.mailed()) == len(orders) + 1)

        assert sorted(shop.mailed()) == rows(database, "select id from orders order by id")
