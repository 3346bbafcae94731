"""The outbox beside a plain one as people write it: how fast rows are sent, and how long after its commit an event is consumed.

Run ``python benchmarks/outbox.py [--database sqlite|postgres|URL] [--events N] [--seconds S]``; the figures are printed, nothing is
asserted. The plain outbox is a table, and a relay that looks each 100 ms, takes 100 rows, sends them one by one through a
`Producer`, and removes them in one transaction. The broker is a `halfmoon serve` of its own; SQLite is a file with a write-ahead
log, PostgreSQL a server of its own with its syncs off, as the tests have it.

* drain: rows that are there already are sent; events per second, and processor time of this process an event.
* through: eight threads publish one event a transaction while the relay sends; events per second until the last is consumed.
* latency: 100 transactions a second, or as many as ``--rate`` says; time from the end of the commit to the consumer, p50 and p99.
  Also with the relay as a program of its own (``halfmoon outbox relay``) that looks each second, and, in PostgreSQL, is told of
  commits (LISTEN) or not. ``--only latency`` runs just this part.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import BigInteger, Integer, LargeBinary, String, delete, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from halfmoon import ConsumeFrom, Message, Producer, PushConsumer, StoredMessage
from halfmoon.events.outbox.relay import Relay
from halfmoon.events.publishing.client_transport import ClientTransport
from halfmoon.events.publishing.publisher import Publisher
from halfmoon.model import LocalTransactionState
from tests.events.real_databases import Postgres, missing

THREADS = 8
POLL_S, BATCH = 0.1, 100
PARTS = ("drain", "through", "latency")
WAIT_S = 60
PAYLOAD = {"order_id": 42, "customer": "c-4711", "lines": [{"sku": "b-1", "count": 2, "price": "12.30"}] * 3}


class Base(DeclarativeBase):
    """Tables of the plain outbox."""


class Plain(Base):
    """A row of it."""

    __tablename__ = "plain_outbox"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    event_id: Mapped[str] = mapped_column(String(64))
    topic: Mapped[str] = mapped_column(String(127))
    payload: Mapped[bytes] = mapped_column(LargeBinary)


class PlainSide:
    """The outbox as people write it."""

    name = "plain"

    def __init__(self, engine: sqlalchemy.Engine, nameserver: str, topic: str) -> None:
        Base.metadata.create_all(engine)
        self.sessions, self.topic = sessionmaker(engine), topic
        self._producer = Producer(group="P_plain", nameserver=nameserver)
        self._producer.start()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._relay)
        self._numbers = iter(range(1 << 60))

    def publish(self, session: Session) -> str:
        """Write an event as part of a transaction, and return its id."""
        event_id = f"plain-{next(self._numbers)}"
        session.add(Plain(event_id=event_id, topic=self.topic, payload=json.dumps(PAYLOAD).encode()))
        return event_id

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._closing.set()
        self._thread.join()
        self._producer.close()

    def left(self) -> bool:
        """Whether rows are there."""
        with self.sessions() as session:
            return session.scalar(select(Plain.id).limit(1)) is not None

    def _relay(self) -> None:
        while not self._closing.is_set():
            with self.sessions.begin() as session:
                found = session.scalars(select(Plain).order_by(Plain.id).limit(BATCH)).all()
                for row in found:
                    self._producer.send(Message(row.topic, row.payload, keys=[row.event_id]))
                session.execute(delete(Plain).where(Plain.id.in_([row.id for row in found])))
            if len(found) < BATCH:
                self._closing.wait(POLL_S)


class OurSide:
    """Halfmoon's, through a publisher whose relay is in this process. ``notify`` as the publisher's."""

    name, notify = "ours", False

    def __init__(self, engine: sqlalchemy.Engine, nameserver: str, topic: str) -> None:
        self.sessions, self.topic, self._nameserver = sessionmaker(engine), topic, nameserver
        self._publisher = Publisher("P_ours", nameserver, session=self.sessions, mode="outbox", relay=False, notify=self.notify)
        self._publisher.create_tables()
        self._publisher.start()
        self._transport = ClientTransport("P_relay", nameserver)
        self._transport.start(lambda stored: LocalTransactionState.UNKNOWN)
        self._relay = Relay(self._publisher.provider, self._transport, poll_ms=int(POLL_S * 1000), listen=False)

    def publish(self, session: Session) -> str:
        """Write an event as part of a transaction, and return its id."""
        return self._publisher.publish(self.topic, "EC_PAID", PAYLOAD, transactional=True, session=session).event_id

    def committed(self) -> None:
        """What `Publisher` does after a commit when the relay is its own."""
        self._relay.wake()

    def start(self) -> None:
        """Begin to send."""
        self._relay.start()

    def close(self) -> None:
        """End."""
        self._relay.close()
        self._transport.close(1_000)
        self._publisher.close()

    def left(self) -> bool:
        """Whether rows are there."""
        return self._relay.backlog().backlog > 0


class PolledSide(OurSide):
    """Halfmoon's, with the relay in a process of its own that finds rows by looking."""

    name = "ours, relay that polls"

    def committed(self) -> None:
        """Nobody tells the relay."""

    def start(self) -> None:
        """Begin to send."""
        address = self.sessions.kw["bind"].url.render_as_string(hide_password=False)
        command = [str(Path(sys.executable).with_name("halfmoon")), "outbox", "relay", "--poll", "1s"]
        environment = {**os.environ, "HALFMOON_DATABASE": address, "NAMESRV_ADDR": self._nameserver}
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    def close(self) -> None:
        """End."""
        self._process.terminate()
        self._process.wait()
        super().close()


class NotifiedSide(PolledSide):
    """As before, and PostgreSQL tells the relay of commits."""

    name, notify = "ours, relay that is told", True


Side = PlainSide | OurSide


class Reader:
    """A consumer that notes when it got each event, by its first key."""

    def __init__(self, nameserver: str, topic: str) -> None:
        self.at_s: dict[str, float] = {}
        self._consumer = PushConsumer(group=f"S_{topic}", nameserver=nameserver, consume_from=ConsumeFrom.FIRST_OFFSET)
        self._consumer.subscribe(topic)
        self._consumer.on_message(self._take)

    def _take(self, messages: list[StoredMessage]) -> None:
        now = time.perf_counter()
        for one in messages:
            self.at_s.setdefault(one.keys[0], now)

    def __enter__(self) -> Reader:
        self._consumer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._consumer.close()


def commit_one(side: Side) -> str:
    """Run one transaction of the user's and return its event's id."""
    with side.sessions.begin() as session:
        event_id = side.publish(session)
    if isinstance(side, OurSide):
        side.committed()
    return event_id


def drain(side: Side, count: int) -> str:
    """Send rows that are there."""
    for _ in range(count // 100):
        with side.sessions.begin() as session:
            for _ in range(100):
                side.publish(session)
    begin, cpu = time.perf_counter(), time.process_time()
    side.start()
    wait_for(lambda: not side.left(), 0.02)
    took, cpu = time.perf_counter() - begin, time.process_time() - cpu
    return f"{count / took:8,.0f} events/s  {cpu / count * 1e6:7.0f} us of CPU an event"


def through(side: Side, count: int, reader: Reader) -> str:
    """Publish from threads and send at the same time."""
    side.start()
    begin = time.perf_counter()

    def work() -> None:
        for _ in range(count // THREADS):
            commit_one(side)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    published = time.perf_counter() - begin
    total = count // THREADS * THREADS
    wait_for(lambda: len(reader.at_s) >= total, 0.005)
    return f"{total / (time.perf_counter() - begin):8,.0f} events/s to the consumer  {total / published:8,.0f} published/s"


def latency(side: Side, seconds: float, rate: int, reader: Reader) -> str:
    """Commit so often a second and see when consumers have it."""
    side.start()
    commit_one(side)
    wait_for(lambda: reader.at_s, 0.01)
    done: dict[str, float] = {}
    begin = time.perf_counter()
    for at in range(int(seconds * rate)):
        time.sleep(max(0.0, begin + at / rate - time.perf_counter()))
        event_id = commit_one(side)
        done[event_id] = time.perf_counter()
    wait_for(lambda: len(reader.at_s) > len(done), 0.01)
    took = sorted((reader.at_s[one] - at) * 1e3 for one, at in done.items())
    return f"commit to consumer p50 {took[len(took) // 2]:7.1f} ms  p99 {took[len(took) * 99 // 100]:7.1f} ms  of {len(took)}"


def wait_for(found: Callable[[], Any], pause_s: float) -> None:
    """Wait until something is found."""
    end = time.monotonic() + WAIT_S
    while not found():
        if time.monotonic() > end:
            raise TimeoutError(f"not all events came in {WAIT_S} s")
        time.sleep(pause_s)


@contextmanager
def broker(root: Path) -> Iterator[str]:
    """Run a broker and give its name server's address."""
    command = [str(Path(sys.executable).with_name("halfmoon")), "serve", "--data", str(root), "--json"]
    command += ["--nameserver-port", "0", "--broker-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["nameserver"]
        finally:
            process.terminate()


@contextmanager
def engine_of(name: str, root: Path) -> Iterator[sqlalchemy.Engine]:
    """Give an engine: of a SQLite file, a PostgreSQL of its own, or an address."""
    if name == "postgres" and missing():
        raise SystemExit(missing())
    server = Postgres() if name == "postgres" else None
    url = server.create() if server is not None else f"sqlite:///{root / 'outbox.db'}" if name == "sqlite" else name
    engine = sqlalchemy.create_engine(url, pool_size=THREADS + 4)
    try:
        if engine.dialect.name == "sqlite":
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        yield engine
    finally:
        engine.dispose()
        if server is not None:
            server.close()


def main() -> None:
    """Run every part for every side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", default="sqlite", help="sqlite, postgres, or an address as SQLAlchemy writes it")
    parser.add_argument("--events", type=int, default=2_000, help="of drain and through, a multiple of 100 (2000)")
    parser.add_argument("--seconds", type=float, default=3, help="of latency (3)")
    parser.add_argument("--rate", type=int, default=100, help="transactions a second of latency (100)")
    parser.add_argument("--only", choices=PARTS, action="append", help="run only this part; may be repeated")
    given = parser.parse_args()
    makers: list[type[Side]] = [PlainSide, OurSide, PolledSide, NotifiedSide]
    with tempfile.TemporaryDirectory() as name, broker(Path(name) / "store") as nameserver:
        for part in given.only or PARTS:
            for at, make in enumerate(makers if part == "latency" else makers[:2]):
                topic = f"TP_{part}_{at}"
                reading = Reader(nameserver, topic) if part != "drain" else None
                with engine_of(given.database, Path(name)) as engine, reading or nullcontext():
                    side = make(engine, nameserver, topic)
                    try:
                        if reading is None:
                            said = drain(side, given.events)
                        elif part == "through":
                            said = through(side, given.events, reading)
                        else:
                            said = latency(side, given.seconds, given.rate, reading)
                    finally:
                        side.close()
                    print(f"{part:<8} {side.name:<26} {said}", flush=True)


if __name__ == "__main__":
    main()
