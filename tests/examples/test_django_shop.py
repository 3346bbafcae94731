"""The Django shop of the examples, as processes of its own, with a real broker and a SQLite file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import pytest

from halfmoon import Admin
from halfmoon.testing.local import LocalCluster

SHOP = Path(__file__).resolve().parent.parent.parent / "examples" / "django_shop"
HOST = "127.0.0.1"
WAIT_S = 60


class Shop:
    """The shop's processes. ``mails`` and ``orders`` look into its database."""

    def __init__(self, directory: Path, nameserver: str) -> None:
        self.directory = directory
        self.database = directory / "shop.db"
        self.port = _free_port()
        self.environment = {
            **os.environ,
            "SHOP_DATABASE": str(self.database),
            "SHOP_NAMESERVER": nameserver,
            "SHOP_MAIL_DIRECTORY": str(directory / "mails"),
            "SHOP_SECRET_KEY": "of tests only",
            "SHOP_CHAOS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        self._running: list[subprocess.Popen[bytes]] = []

    def command(self, *arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command of manage.py to its end."""
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=SHOP, env={**self.environment, **environment}, capture_output=True, text=True, check=check, timeout=120,
        )  # fmt: skip

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a command of manage.py; what it writes goes into a file beside the database."""
        with (self.directory / f"{arguments[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=SHOP, env={**self.environment, **environment}, stdout=log, stderr=log,
            )  # fmt: skip
        self._running.append(process)
        return process

    def serve(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start the web process, and wait until it answers."""
        process = self.start("runserver", "--noreload", f"{HOST}:{self.port}", **environment)
        wait_for(lambda: process.poll() is not None or _accepts(self.port), self)
        assert process.poll() is None, self.log("runserver")
        return process

    def consume(self) -> subprocess.Popen[bytes]:
        """Start the consumers, and wait until they are ready."""
        process = self.start("halfmoon_consume")
        wait_for(lambda: "consuming as S_mail, S_stock" in self.log("halfmoon_consume"), self)
        return process

    def log(self, name: str) -> str:
        """Return what a command has written."""
        path = self.directory / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def order(self, book: str, card: str = "4111") -> int:
        """Place an order over HTTP; returns the status, 0 when the process died over it."""
        said = json.dumps({"book": book, "email": "ada@localhost", "card": card}).encode()
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.port}/orders/", said, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as exc:
            return exc.code
        except OSError:
            return 0

    def rows(self, statement: str, *values: str) -> list[Any]:
        """Look into the database."""
        with contextlib.closing(sqlite3.connect(self.database, timeout=20)) as connection:
            return connection.execute(statement, values).fetchall()

    def mails(self, book: str) -> int:
        """How many mails the database tells of, for orders of a book."""
        return int(
            self.rows(f"SELECT COUNT(*) FROM shop_mail m JOIN shop_order o ON o.id = m.order_id WHERE o.book = '{book}'")[0][0]
        )

    def orders(self, book: str) -> int:
        """How many orders of a book there are."""
        return int(self.rows("SELECT COUNT(*) FROM shop_order WHERE book = ?", book)[0][0])

    def letters(self) -> list[str]:
        """The mails that were sent."""
        return [one.read_text() for one in sorted((self.directory / "mails").glob("*"))]

    def close(self) -> None:
        """End what still runs."""
        for process in self._running:
            end(process)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A shop with its tables, beside a broker that asks soon and often."""
    settings = {"transactionTimeOut": 1_000, "transactionCheckInterval": 500}
    with LocalCluster(tmp_path / "store", settings) as cluster:
        found = Shop(tmp_path, cluster.nameserver)
        try:
            found.command("migrate", "--verbosity", "0")
            yield found
        finally:
            found.close()


@pytest.mark.slow
@pytest.mark.mission("002-52")
def test_an_order_is_mailed_once_and_one_that_fails_after_the_publish_is_not(shop: Shop):
    shop.serve()
    consumers = shop.consume()

    assert shop.order("Momo") == 201
    assert shop.order("Emil", card="declined") == 402
    assert shop.order("Lotta") == 201
    wait_for(lambda: shop.mails("Momo") == 1 and shop.mails("Lotta") == 1, shop)
    wait_for(lambda: pending(shop) == 0, shop)
    assert end(consumers) == 0, "SIGTERM finishes what is in hand and ends well"

    assert (shop.orders("Emil"), shop.mails("Emil")) == (0, 0)
    assert shop.rows("SELECT COUNT(*) FROM shop_mail")[0][0] == 2
    assert sorted(re.findall(r"Subject: (.*)", "".join(shop.letters()))) == ["Your book: Lotta", "Your book: Momo"]
    assert shop.log("halfmoon_consume").count("one more Momo, please") == 1


@pytest.mark.slow
@pytest.mark.mission("002-52")
def test_a_process_killed_between_the_commit_and_the_second_phase_loses_no_mail(shop: Shop):
    consumers = shop.consume()
    web = shop.serve()
    assert shop.order("Momo") == 201
    wait_for(lambda: shop.mails("Momo") == 1, shop)
    end(consumers)  # it could answer checks, too: this is about the web process alone

    assert shop.order("CRASH") == 0
    assert web.wait(WAIT_S) == -signal.SIGKILL
    assert shop.orders("CRASH") == 1
    assert pending(shop) == 1

    shop.serve()
    with urllib.request.urlopen(f"http://{HOST}:{shop.port}/", timeout=60) as answer:
        assert b"CRASH" in answer.read()
    wait_for(lambda: pending(shop) == 0, shop)
    shop.consume()
    wait_for(lambda: shop.mails("CRASH") == 1, shop)

    assert shop.mails("Momo") == 1


@pytest.mark.slow
@pytest.mark.mission("002-52")
def test_a_web_process_killed_again_and_again_leaves_orders_and_mails_that_agree(shop: Shop):
    random = Random(6)
    shop.consume()
    web, stop = [shop.serve()], Event()

    def buy(number: int) -> None:
        while not stop.is_set():
            shop.order(random.choice(["Momo", "Emil", "Lotta"]), card=random.choice(["4111", "declined"]))
            time.sleep(0.02)

    buyers = [Thread(target=buy, args=(number,)) for number in range(3)]
    for one in buyers:
        one.start()
    try:
        for _ in range(3):
            time.sleep(random.uniform(0.3, 1.0))
            web[-1].kill()
            web[-1].wait()
            web.append(shop.serve())
        time.sleep(0.5)
    finally:
        stop.set()
        for one in buyers:
            one.join()
    wait_for(lambda: pending(shop) == 0, shop)
    wait_for(lambda: shop.rows("SELECT COUNT(*) FROM shop_mail") == shop.rows("SELECT COUNT(*) FROM shop_order"), shop)

    orders = [one for (one,) in shop.rows("SELECT id FROM shop_order ORDER BY id")]
    assert len(orders) > 10
    assert [one for (one,) in shop.rows("SELECT order_id FROM shop_mail ORDER BY order_id")] == orders
    assert delivered(shop) == len(orders), "every order has one event, and no event is of an order that is not there"


@pytest.mark.slow
def test_with_the_outbox_orders_are_taken_while_the_broker_is_down(tmp_path: Path):
    with LocalCluster(tmp_path / "store") as cluster:
        shop = Shop(tmp_path, cluster.nameserver)
        shop.environment["SHOP_MODE"] = "outbox"
        try:
            shop.command("migrate", "--verbosity", "0")
            cluster.stop()
            shop.serve()
            assert shop.order("Momo") == 201
            assert shop.order("Emil", card="declined") == 402
            assert shop.rows("SELECT COUNT(*) FROM halfmoon_outbox")[0][0] == 1
            cluster.start()
            shop.consume()
            wait_for(lambda: shop.mails("Momo") == 1, shop)
            wait_for(lambda: shop.rows("SELECT COUNT(*) FROM halfmoon_outbox")[0][0] == 0, shop)
            assert shop.rows("SELECT COUNT(*) FROM shop_mail")[0][0] == 1
        finally:
            shop.close()


@pytest.mark.slow
def test_the_admin_pages_and_the_commands_show_what_happened(shop: Shop):
    shop.command("createsuperuser", "--noinput", DJANGO_SUPERUSER_USERNAME="ada", DJANGO_SUPERUSER_PASSWORD="secret",
                 DJANGO_SUPERUSER_EMAIL="ada@localhost")  # fmt: skip
    shop.serve()
    shop.consume()
    assert shop.order("Momo") == 201
    wait_for(lambda: shop.mails("Momo") == 1, shop)
    event_id = shop.rows("SELECT event_id FROM shop_mail")[0][0]

    look = logged_in(shop, "ada", "secret")
    assert event_id in look("/admin/halfmoon_events/token/")
    assert event_id in look("/admin/halfmoon_events/consumed/")
    assert "0 events in the outbox" in look("/admin/halfmoon_events/outboxevent/")
    assert "No event of group P_shop waits" in look("/admin/halfmoon_events/token/pending/")
    assert "Momo" in look("/admin/shop/mail/")

    status = json.loads(shop.command("halfmoon_status", "--json").stdout)
    assert (status["tokens"], status["consumed"], status["half_messages"], status["brokers"]) == (1, 1, 0, "ok")
    assert "removed 0 tokens" in shop.command("halfmoon_cleanup").stdout
    assert shop.command("check").returncode == 0


@pytest.mark.slow
def test_the_shops_own_tests_pass(tmp_path: Path):
    shop = Shop(tmp_path, "127.0.0.1:1")

    assert "OK" in shop.command("test").stderr


def test_the_readme_names_the_variables_that_the_settings_read():
    read = set(re.findall(r'"(SHOP_\w+)"', "".join(one.read_text() for one in SHOP.rglob("*.py"))))
    table = set(re.findall(r"`(SHOP_\w+)`", (SHOP / "README.md").read_text()))

    assert table == read


# ---------------------------------------------------------------- what the tests look with


def pending(shop: Shop) -> int:
    """How many half messages wait at the broker."""
    with Admin(nameserver=shop.environment["SHOP_NAMESERVER"]) as admin:
        return len(admin.pending_transactions(group="P_shop"))


def delivered(shop: Shop) -> int:
    """How many events consumers can see."""
    with Admin(nameserver=shop.environment["SHOP_NAMESERVER"]) as admin:
        return sum(one.max_offset for one in admin.topic_stats("TP_ORDER").values())


def logged_in(shop: Shop, name: str, password: str) -> Callable[[str], str]:
    """Log in, and return what fetches a page; any answer but 200 is an error."""
    jar = CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    place = f"http://{HOST}:{shop.port}"

    def look(path: str, said: bytes | None = None) -> str:
        with browser.open(f"{place}{path}", said, timeout=60) as answer:
            assert answer.status == 200
            return str(answer.read().decode())

    look("/admin/login/")
    token = next(one.value for one in jar if one.name == "csrftoken")
    look("/admin/login/", f"username={name}&password={password}&csrfmiddlewaretoken={token}&next=/admin/".encode())
    return look


def wait_for(condition: Callable[[], bool], shop: Shop) -> None:
    """Wait until something is true, for a bounded time; then what the processes wrote is shown."""
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, shop.log("runserver")[-4_000:] + shop.log("halfmoon_consume")[-4_000:]
        time.sleep(0.05)


def end(process: subprocess.Popen[bytes]) -> int:
    """End a process, gently at first; returns its exit code."""
    if process.poll() is None:
        process.terminate()
        try:
            return process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1):
        return True
    return False
