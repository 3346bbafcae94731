"""What recovery, a search by time and a query by key cost as the log grows: they must not grow with it.

    python benchmarks/lookups.py [--sizes 10000 100000 1000000]

For each size: messages of 1 KiB in four queues, all indexed; then the store is left as a kill leaves it and opened again.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from random import Random
from time import perf_counter, time

from halfmoon.instant import instant
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store import Draft, Store, StoreSettings
from halfmoon.wire.ids import pack_host

HOST = pack_host("127.0.0.1:10911")
TOPIC = "BenchmarkTest"
A_TURN = 64


def fill(store: Store, count: int, now: int) -> int:
    """Append messages, a millisecond a turn, with everything that time asks for; return the last time."""
    body = bytes(1024)
    for start in range(0, count, A_TURN):
        now += 1
        drafts: list[Draft] = [
            (body, b"UNIQ_KEY\x01%032X\x02KEYS\x01order-%d\x02" % (k, k), 0, 0, now, HOST, 0, 0, 0)
            for k in range(start, start + A_TURN)
        ]
        store.append(TOPIC, start // A_TURN % 4, drafts, now)
        tick(store, now)
    while store._indexing.position < store.end_offset:
        now += 1
        tick(store, now)
    return now


def tick(store: Store, now: int) -> None:
    """Let the store do what is due, the works at once."""
    store.arrivals()
    store.tick(instant(now))
    for work in store.work():
        try:
            result = work.run()
        except OSError as exc:
            result = exc
        work.done(result, instant(now))


def median_us(lookups: list[float]) -> float:
    """Return the median in microseconds."""
    return statistics.median(lookups) * 1e6


def measure(count: int) -> str:
    """Return one row of the table."""
    random = Random(count)
    began = int(time() * 1000)
    with tempfile.TemporaryDirectory() as root:
        store = Store.open(RealDisk(root), StoreSettings(), HOST, instant(began))
        now = fill(store, count, began)
        by_key, by_time = [], []
        for _ in range(300):
            key = f"order-{random.randrange(count)}"
            start = perf_counter()
            found = store.query(TOPIC, key, 32, 0, now)
            by_key.append(perf_counter() - start)
            assert len(found.records) == 1, key
            start = perf_counter()
            store.offset_at(TOPIC, random.randrange(4), random.randrange(began, now))
            by_time.append(perf_counter() - start)
        size = store.end_offset
        store._lock.release()  # as a kill leaves it: nothing is closed, and only the lock goes
        start = perf_counter()
        again = Store.open(RealDisk(root), StoreSettings(), HOST, instant(now))
        opened = perf_counter() - start
        assert again.end_offset == size
        again.close(instant(now))
    return f"| {count:,} | {size / 1e6:,.0f} | {median_us(by_key):.0f} | {median_us(by_time):.0f} | {opened * 1000:.0f} |"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    print("| messages | MB of log | query by key, us | search by time, us | open after a kill, ms |\n|--:|--:|--:|--:|--:|")
    for count in arguments.parse_args().sizes:
        print(measure(count), flush=True)


if __name__ == "__main__":
    main()
