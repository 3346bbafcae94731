"""Decisions of transactional events: from a commit to the consumer, at a steady rate, and what a shortcut would save.

Run ``python benchmarks/decisions.py [--rate N] [--seconds S] [--database postgres|sqlite|URL]``. Broker, database and consumer are
as in `benchmarks.outbox`. With another tree first on PYTHONPATH it measures that one: run both in turn to compare them.

* latency: eight threads commit so many transactions a second in all, one event each; time from the end of the commit to the
  consumer, p50 and p99, and of the whole transaction, and processor time of this process for each.
* shortcut: the same, but a commit that the session saw is believed and the row is not asked for: what the question costs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy.orm import sessionmaker

sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks.outbox import PAYLOAD, THREADS, Reader, broker, engine_of, wait_for
from halfmoon.events import Publisher

CODE = "EC_PAID"


@contextmanager
def shortcut() -> Iterator[None]:
    """Have a publisher believe what it saw of a commit."""
    from halfmoon.events.publishing.completion import RowDecision
    from halfmoon.events.transaction import Status
    from halfmoon.model import LocalTransactionState

    asked = RowDecision.after_completion

    def believed(self: Any, status: Status) -> None:
        if status is Status.COMMITTED:
            self._decider._decide(self.question, LocalTransactionState.COMMIT)
        else:
            asked(self, status)

    RowDecision.after_completion = believed  # type: ignore[method-assign]
    try:
        yield
    finally:
        RowDecision.after_completion = asked  # type: ignore[method-assign]


class FarReader:
    """A `Reader` in a process of its own, as consumers are. ``count`` and ``at_s`` ask it; its clock is that of all processes."""

    def __init__(self, nameserver: str, topic: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_read, args=(nameserver, topic, theirs), daemon=True)
        self._process.start()

    @property
    def count(self) -> int:
        """Return how many it has."""
        self._pipe.send("count")
        return int(self._pipe.recv())

    @property
    def at_s(self) -> dict[str, float]:
        """When it got each."""
        self._pipe.send("all")
        found: dict[str, float] = self._pipe.recv()
        return found

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.join()


def _read(nameserver: str, topic: str, pipe: Any) -> None:
    with Reader(nameserver, topic) as reader:
        while True:
            pipe.send(len(reader.at_s) if pipe.recv() == "count" else dict(reader.at_s))


def paced(publisher: Publisher, sessions: sessionmaker[Any], topic: str, reader: FarReader, rate: float, seconds: float) -> str:
    """Commit at a steady rate and see when the consumer has each event."""
    done: dict[str, float] = {}
    took: list[float] = []

    def one() -> None:
        began = time.perf_counter()
        with sessions.begin():
            event_id = publisher.publish(topic, CODE, PAYLOAD, transactional=True).event_id
        done[event_id] = time.perf_counter()
        took.append(done[event_id] - began)

    one()
    wait_for(lambda: reader.count, 0.01)
    done.clear()
    took.clear()
    begin, cpu = time.perf_counter(), time.process_time()

    def run(thread: int) -> None:
        for at in range(int(seconds * rate / THREADS)):
            time.sleep(max(0.0, begin + (at * THREADS + thread) / rate - time.perf_counter()))
            one()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reached = len(done) / (time.perf_counter() - begin)
    cpu = (time.process_time() - cpu) / len(done)
    wait_for(lambda: reader.count > len(done), 0.05)
    seen = reader.at_s
    late = sorted((seen[one] - at) * 1e3 for one, at in done.items())
    took.sort()
    return (
        f"commit to consumer p50 {_part(late, 50):6.1f} ms  p99 {_part(late, 99):6.1f} ms  "
        f"transaction p50 {_part(took, 50) * 1e3:5.1f} ms  p99 {_part(took, 99) * 1e3:5.1f} ms  "
        f"{cpu * 1e6:5.0f} us of CPU  {reached:5.0f}/s of {rate:.0f}"
    )


def _part(values: list[float], percent: int) -> float:
    return values[len(values) * percent // 100]


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=500, help="transactions per second (500)")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--database", default="postgres", help="sqlite, postgres, or an address as SQLAlchemy writes it")
    parser.add_argument("--only", choices=["latency", "shortcut"], action="append")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, broker(Path(name) / "store") as nameserver:
        for part in given.only or ["latency", "shortcut"]:
            topic = f"TP_{part}"
            with engine_of(given.database, Path(name)) as engine, closing(FarReader(nameserver, topic)) as reader:
                sessions = sessionmaker(engine)
                with Publisher(f"P_{part}", nameserver, session=sessions) as publisher:
                    publisher.create_tables()
                    with shortcut() if part == "shortcut" else nullcontext():
                        print(f"{part:<8} {paced(publisher, sessions, topic, reader, given.rate, given.seconds)}", flush=True)


if __name__ == "__main__":
    main()
