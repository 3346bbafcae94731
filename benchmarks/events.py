"""Transactional events: what a publish costs its transaction, and how many one process publishes, beside a plain outbox table.

Run ``python benchmarks/events.py [--runs N] [--events N] [--database sqlite|postgres|URL …]``; medians of the runs are printed, and
nothing is asserted. The broker is a `halfmoon serve` of its own, SQLite a file with a write-ahead log or in memory (one for each
thread, so that it is out of the way), PostgreSQL a server of its own with its syncs off, as the tests have it.

* publish: one thread, one event a transaction; time of `publish` (p50, p99), of it outside the request to the broker (ours, p50),
  and requests to the broker that it waited for. With SQLite in memory the database
  is next to free, so that the rest shows.
* threads: eight threads, one event a transaction, each prepared, committed and decided; events per second, and processor time of
  this process an event (the user's own transaction included).
* together: one thread, a hundred events a transaction, by `publish` of each and by `publish_many`; time of publishing them, and of
  the whole transaction (p50).
* plain outbox: the same threads write rows of a table, and a relay that looks each 100 ms sends them one by one; events per second
  from the begin until the last is sent.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import SingletonThreadPool

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.outbox import PAYLOAD, THREADS, PlainSide, broker, engine_of, wait_for
from halfmoon.events import Event, Publisher, local_transaction
from halfmoon.events.tables import TOKENS, create
from halfmoon.runtime.connections import blocking_connections
from tests.events.real_databases import missing

TOPIC, CODE = "TP_BENCH", "EC_PAID"
MANY = 100
"""Events of one transaction that has many."""

Block = Callable[[], AbstractContextManager[Any]]
"""Begins one transaction."""


class Requests:
    """How long each request to a broker took in its thread."""

    def __init__(self) -> None:
        self.took: list[float] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the connections of blocking clients for the block."""
        inner = blocking_connections.SocketConnection.ask

        def ask(*arguments: Any) -> Any:
            begin = time.perf_counter()
            try:
                return inner(*arguments)
            finally:
                self.took.append(time.perf_counter() - begin)

        blocking_connections.SocketConnection.ask = ask  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            blocking_connections.SocketConnection.ask = inner  # type: ignore[method-assign]


def cost(publisher: Publisher, begin_block: Block, count: int) -> tuple[float, float, float, float]:
    """Return p50 and p99 of publishing, p50 of it outside the request (all in ms), and requests an event."""
    for _ in range(50):
        one_event(publisher, begin_block)
    requests, took, ours = Requests(), [], []
    with requests.watched():
        for _ in range(count):
            asked = len(requests.took)
            with begin_block():
                begin = time.perf_counter()
                publisher.publish(TOPIC, CODE, PAYLOAD, transactional=True)
                took.append((time.perf_counter() - begin) * 1e3)
            ours.append(took[-1] - sum(requests.took[asked:]) * 1e3)
    took.sort()
    return took[count // 2], took[count * 99 // 100], statistics.median(ours), len(requests.took) / count


def one_event(publisher: Publisher, begin_block: Block) -> None:
    """Run one transaction with one event."""
    with begin_block():
        publisher.publish(TOPIC, CODE, PAYLOAD, transactional=True)


def rate(work: Callable[[], None], count: int, prepare: Callable[[], None] = lambda: None, over: Any = None) -> tuple[float, float]:
    """Have the threads do the work so often in all; return times a second, and processor time in us for each."""
    ready = threading.Barrier(THREADS + 1)

    def run() -> None:
        try:
            prepare()
            work()
        except BaseException:
            ready.abort()
            raise
        ready.wait()
        for _ in range(count // THREADS):
            work()

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for one in threads:
        one.start()
    ready.wait()
    begin, cpu = time.perf_counter(), time.process_time()
    for one in threads:
        one.join()
    if over is not None:
        over()
    took, cpu, total = time.perf_counter() - begin, time.process_time() - cpu, count // THREADS * THREADS
    return total / took, cpu / total * 1e6


def plain_rate(engine: sqlalchemy.Engine, nameserver: str, topic: str, count: int) -> tuple[float, float]:
    """The plain outbox: rows written by the threads, and sent by its relay."""
    side = PlainSide(engine, nameserver, topic)
    side.start()

    def work() -> None:
        with side.sessions.begin() as session:
            side.publish(session)

    try:
        return rate(work, count, over=lambda: wait_for(lambda: not side.left(), 0.02))
    finally:
        side.close()


@contextmanager
def in_memory() -> Iterator[sessionmaker[Any]]:
    """Give sessions of SQLite in memory, one database for each thread."""
    engine = sqlalchemy.create_engine(
        "sqlite://", poolclass=SingletonThreadPool, pool_size=10_000, connect_args={"check_same_thread": False}
    )
    try:
        yield sessionmaker(engine)
    finally:
        engine.dispose()


def make_tokens(sessions: sessionmaker[Any]) -> None:
    """Make the table of token rows in the calling thread's database; no check looks into it here."""
    with sessions.begin() as session:
        for statement in create(TOKENS, "sqlite"):
            session.execute(sqlalchemy.text(statement))


def medians(run: Callable[[], tuple[float, ...]], runs: int) -> list[float]:
    """Return the median of each figure."""
    return [statistics.median(column) for column in zip(*[run() for _ in range(runs)])]


def say_cost(name: str, found: list[float]) -> None:
    p50, p99, ours, requests = found
    print(f"publish  {name:<28} p50 {p50:6.3f} ms  p99 {p99:6.3f} ms  ours p50 {ours:6.3f} ms  {requests:.2f} requests", flush=True)


def many(publisher: Publisher, begin_block: Block, count: int, publish: Callable[[list[Event]], object]) -> tuple[float, float]:
    """Return p50 of publishing `MANY` events, and of the transaction around it, in ms."""
    took, whole = [], []
    for _ in range(max(5, count // MANY)):
        events = [publisher.event(TOPIC, CODE, PAYLOAD, transactional=True) for _ in range(MANY)]
        first = time.perf_counter()
        with begin_block():
            begin = time.perf_counter()
            publish(events)
            took.append((time.perf_counter() - begin) * 1e3)
        whole.append((time.perf_counter() - first) * 1e3)
        time.sleep(0.1)  # decisions of one do not delay the next
    return statistics.median(took), statistics.median(whole)


def say_many(name: str, alone: list[float], together: list[float]) -> None:
    ways = [f"{way} {took:6.2f} ms (transaction {whole:6.2f})" for way, (took, whole) in (("alone", alone), ("together", together))]
    print(f"{MANY} events {name:<27} {'  '.join(ways)}  ratio {alone[0] / together[0]:.1f}", flush=True)


def say_rate(name: str, found: list[float]) -> None:
    print(f"threads  {name:<28} {found[0]:8,.0f} events/s  {found[1]:6.0f} us of CPU an event", flush=True)


def undecided(event: Any, context: Any) -> None:
    """A check written by hand; nobody asks it here."""
    raise RuntimeError("not asked in a benchmark")


def without_database(nameserver: str, runs: int, count: int) -> None:
    """A block is the transaction: the cost of events alone."""
    with Publisher("P_block", nameserver) as publisher:
        publisher.check(TOPIC, CODE)(undecided)
        say_cost("no database", medians(lambda: cost(publisher, local_transaction, count // 4), runs))
        say_rate("no database", medians(lambda: rate(lambda: one_event(publisher, local_transaction), count), runs))


def with_memory(nameserver: str, runs: int, count: int) -> None:
    """SQLite in memory, a database for each thread."""
    with in_memory() as sessions, closing(Publisher("P_memory", nameserver, session=sessions)) as publisher:
        make_tokens(sessions)
        say_cost("SQLite in memory", medians(lambda: cost(publisher, sessions.begin, count // 4), runs))
        work: Callable[[], None] = lambda: one_event(publisher, sessions.begin)  # noqa: E731
        say_rate("SQLite in memory", medians(lambda: rate(work, count, lambda: make_tokens(sessions)), runs))


def with_server(nameserver: str, database: str, root: Path, runs: int, count: int) -> None:
    """A database that the threads share: events in two phases, and the plain outbox."""
    with engine_of(database, root) as engine:
        sessions = sessionmaker(engine)
        with Publisher(f"P_{database.partition(':')[0]}", nameserver, session=sessions) as publisher:
            publisher.create_tables()
            found = medians(lambda: rate(lambda: one_event(publisher, sessions.begin), count), runs)
            say_rate(f"{database}, token row", found)
            alone = medians(lambda: many(publisher, sessions.begin, count, lambda events: [*map(publisher.publish, events)]), runs)
            together = medians(lambda: many(publisher, sessions.begin, count, publisher.publish_many), runs)
            say_many(f"{database}, token row", alone, together)
        found = medians(lambda: plain_rate(engine, nameserver, "TP_PLAIN", count // 2), runs)
        say_rate(f"{database}, plain outbox", found)


def main() -> None:
    """Run every part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each figure (3)")
    parser.add_argument("--events", type=int, default=2_000, help="of each run with threads (2000); a quarter of it with one")
    parser.add_argument("--database", action="append", help="sqlite, postgres, or an address; more than one may be given (both)")
    given = parser.parse_args()
    logging.getLogger("halfmoon.events").setLevel(logging.CRITICAL)  # old token rows of other threads' databases are nobody's
    databases = given.database or ["sqlite", *([] if missing() else ["postgres"])]
    with tempfile.TemporaryDirectory() as name, broker(Path(name) / "store") as nameserver:
        without_database(nameserver, given.runs, given.events)
        with_memory(nameserver, given.runs, given.events)
        for database in databases:
            with_server(nameserver, database, Path(name), given.runs, given.events // 4)


if __name__ == "__main__":
    main()
