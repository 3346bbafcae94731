"""Publishers that connect before their first use: with a broker, without one, across forks, and at every kind of end."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from halfmoon import TransactionProducer
from halfmoon.client import lifecycle
from halfmoon.errors import NetworkError, NotRunning
from halfmoon.events import Publisher, local_transaction
from halfmoon.events.publishing.client_transport import ClientTransport
from halfmoon.testing.local import LocalCluster
from tests.events.fakes import Blocks
from tests.events.forking import ended_well, forked, in_child
from tests.visible import settled
from tests.waiting import until

ROOT = Path(__file__).parents[3]
T, C = "TP_ORDER", "EC_PAID"


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of a name server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Have every start of a transport of this process wait inside its locks until the event is set."""
    go_on, here, local_ip = threading.Event(), os.getpid(), lifecycle.local_ip

    def waiting(towards: str | None = None) -> str:
        if os.getpid() == here:
            go_on.wait(60)
        return local_ip(towards)

    monkeypatch.setattr(lifecycle, "local_ip", waiting)
    yield go_on
    go_on.set()


def producer(publisher: Publisher) -> Any:
    """Return the client of a publisher that has connected."""
    assert isinstance(publisher.transport, ClientTransport)
    return publisher.transport._producer


def greeted(publisher: Publisher) -> bool:
    """Whether a broker has heard of it."""
    return (made := producer(publisher)) is not None and bool(made._client.instance._greeted)


def run(source: str, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    command = [sys.executable, *options, "-c", source, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


# ---------------------------------------------------------------- with a broker

VICTIM = f"""
import os, signal, sys
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from halfmoon.events import Publisher

Session = sessionmaker(create_engine(sys.argv[2]))
events = Publisher("P_shop", sys.argv[1], session=Session)
events.create_tables()
events.transport.decide = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
with Session.begin():
    events.publish({T!r}, {C!r}, "of the predecessor", transactional=True, check_after_s=0)
"""

SUCCESSOR = """
import sys, time
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from halfmoon.events import Publisher

events = Publisher("P_shop", sys.argv[1], session=sessionmaker(create_engine(sys.argv[2])))
sys.stdin.read()
"""


def test_a_successor_that_only_makes_its_publisher_settles_what_its_predecessor_left(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    asking = {"transactionTimeOut": 200, "transactionCheckInterval": 200}
    with LocalCluster(tmp_path / "store", asking) as cluster:
        victim = run(VICTIM, cluster.nameserver, url)
        assert victim.returncode == -signal.SIGKILL, victim.stderr
        command = [sys.executable, "-c", SUCCESSOR, cluster.nameserver, url]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as successor:
            (message,) = settled(cluster.nameserver, T, 1)
            successor.communicate(timeout=60)
        assert message.body == b'"of the predecessor"'


def test_it_asks_the_database_nothing_and_runs_no_relay(cluster: LocalCluster, tmp_path: Path) -> None:
    class Deaf(Blocks):
        def fresh(self, *, lock_wait_ms: int | None = 1_000) -> Any:
            raise AssertionError("the database was asked")

    publisher = Publisher("P_early", cluster.nameserver, provider=Deaf(tmp_path / "shop.db"), mode="outbox")
    until(lambda: greeted(publisher))
    assert publisher._relay is None
    publisher.close()


@pytest.mark.parametrize("used", [False, True])
def test_one_that_is_dropped_leaves_the_broker_unless_it_was_used(cluster: LocalCluster, used: bool) -> None:
    publisher = Publisher("P_dropped", cluster.nameserver)
    until(partial(greeted, publisher))
    if used:
        publisher.publish(T, C, 1)
    client, kept = producer(publisher)._client, weakref.ref(publisher)
    del publisher
    gc.collect()
    if (still := kept()) is not None:
        assert client.state != "closed"
        still.close()
    assert (still is not None) == used
    until(lambda: client.state == "closed")


def test_a_module_may_make_and_use_one_while_it_is_imported(cluster: LocalCluster, tmp_path: Path) -> None:
    source = f"""
import sys, threading
import halfmoon.events

class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            print("imported in the background:", name)

sys.meta_path.insert(0, Watch())
sys.path.insert(0, {str(tmp_path)!r})
import shop
print(shop.sent.delivery)
shop.events.close()
"""
    (tmp_path / "shop.py").write_text(f"""
from halfmoon.events import Publisher
events = Publisher("P_import", {cluster.nameserver.replace("127.0.0.1", "localhost")!r})
sent = events.publish({T!r}, {C!r}, 1)
""")
    for loops in ("", "import sys; sys.modules['uvloop'] = None\n"):
        done = run(loops + source)
        assert (done.stdout, done.stderr) == ("sent\n", "")


# ---------------------------------------------------------------- while it connects


def test_making_one_waits_for_nothing_and_a_first_publish_waits_for_it(held: threading.Event, cluster: LocalCluster) -> None:
    publisher = Publisher("P_slow", cluster.nameserver)
    until(lambda: publisher._connection._opening.locked())
    sent: list[Any] = []
    thread = threading.Thread(target=lambda: sent.append(publisher.publish(T, C, 1)))
    thread.start()
    held.set()
    thread.join(60)
    assert len(sent) == 1
    publisher.close()


def test_one_that_is_closed_while_it_connects_returns_at_once_and_closes_what_was_opened(
    held: threading.Event, cluster: LocalCluster
) -> None:
    publisher = Publisher("P_closed", cluster.nameserver)
    until(lambda: publisher._connection._opening.locked())
    publisher.close()
    assert publisher._connection._opening.locked()
    held.set()
    until(lambda: not publisher._connection._opening.locked())
    assert producer(publisher) is None
    with pytest.raises(NotRunning, match="P_closed is closed"):
        publisher.start()


def test_a_child_that_is_forked_while_its_parent_connects_inherits_no_lock(held: threading.Event, cluster: LocalCluster) -> None:
    publisher = Publisher("P_forked", cluster.nameserver)
    until(lambda: publisher._connection._opening.locked())
    assert in_child(lambda: publisher.publish(T, C, 1))
    held.set()
    publisher.close()


def test_each_process_of_a_server_that_forks_connects_by_itself(cluster: LocalCluster) -> None:
    publisher = Publisher("P_workers", cluster.nameserver)
    until(lambda: greeted(publisher))
    mine = producer(publisher)
    reading, writing = os.pipe()

    def work() -> None:
        until(lambda: producer(publisher) is not mine and greeted(publisher))
        os.write(writing, producer(publisher).client_id.encode() + b"\n")
        publisher.close()

    children = [forked(work) for _ in range(2)]
    os.close(writing)
    assert [ended_well(child) for child in children] == [True, True]
    with os.fdopen(reading) as lines:
        ids = {line.strip() for line in lines}
    assert len(ids | {mine.client_id}) == 3
    assert publisher.publish(T, C, 1).result is not None
    publisher.close()


# ---------------------------------------------------------------- without a broker

ALONE = """
import sys, threading, time
from halfmoon.client.core.produce import transaction
from halfmoon.events import Publisher

transaction.MEET_PAUSE_MS, transaction.MEET_PAUSE_MS_MAX = 10, 20
events = Publisher("P_alone", sys.argv[1])
while not (made := events.transport._producer):
    time.sleep(0.01)
time.sleep(0.3)  # a dozen tries
assert all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())
"""


def said(text: str) -> list[str]:
    """Return the lines of a process with ``-X dev``, without those by which asyncio complains of a busy machine."""
    return [line for line in text.splitlines() if not line.startswith("Executing <")]


@pytest.mark.parametrize("end", ["", "events.close()", "del events; import gc; gc.collect(); time.sleep(0.1)"])
def test_a_process_without_a_broker_hears_one_warning_and_ends_without_a_word(end: str) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        done = run(ALONE + end, address, options=("-X", "dev", "-W", "error"))
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = said(done.stderr)
    assert line.startswith(f"routes not refreshed: no name server answers: connect to {address} failed")


def test_a_process_ends_while_its_publisher_connects(deaf: str) -> None:
    source = """
import sys, threading
from halfmoon.client import lifecycle
from halfmoon.events import Publisher

lifecycle.local_ip = lambda towards: threading.Event().wait()
events = Publisher("P_stuck", sys.argv[1])
"""
    done = run(source, deaf, options=("-X", "dev"))
    assert (done.returncode, done.stdout, said(done.stderr)) == (0, "", [])


@pytest.mark.parametrize("end", [Publisher.close, lambda publisher: None], ids=["closed", "dropped"])
def test_a_name_server_that_never_answers_keeps_no_publisher_that_is(deaf: str, end: Callable[[Publisher], None]) -> None:
    publisher = Publisher("P_deaf", deaf)
    until(partial(producer, publisher))
    client = producer(publisher)._client
    end(publisher)
    del publisher
    gc.collect()
    until(lambda: client.state == "closed")


def test_without_a_name_server_there_is_nothing_to_try(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert Publisher("P_nowhere")._connection._background is None
    assert caplog.text == ""


def test_what_keeps_it_from_connecting_is_said_once_and_raised_by_a_publish(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(producer: TransactionProducer) -> None:
        raise NetworkError("the firewall is closed")

    monkeypatch.setattr(TransactionProducer, "start", refuse)
    publisher = Publisher("P_wrong", "127.0.0.1:9876")
    until(lambda: "publisher P_wrong cannot connect" in caplog.text)
    with pytest.raises(NetworkError, match="the firewall is closed"), local_transaction():
        publisher.publish(T, C, 1)
    publisher.close()
