"""Prices of the store's hot path, microseconds a message: append in batches of a turn, read of a backlog, recovery, key index.

Run ``python benchmarks/store.py [DIR]``; the figures are printed, nothing is asserted. Repeat and compare ratios only.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from halfmoon.instant import instant
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store import Draft, Store, StoreSettings
from halfmoon.store.keyindex.indexing import SLICE_RECORDS

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
NOW = 1_700_000_000_000


def drafts(count: int, body_bytes: int) -> list[Draft]:
    """Messages as senders make them: a unique key each, one tag."""
    body = bytes(i & 0xFF for i in range(body_bytes))
    key = b"UNIQ_KEY\x017F000001000018B4AAC2%08X%04X\x02TAGS\x01TagA\x02"
    return [(body, key % (i // 65536, i % 65536), 0, 0, NOW, HOST, 0, 0, 2598919) for i in range(count)]


def best(rounds: int, work: Callable[[], object], per: int) -> float:
    """Return the best time of some rounds, µs a unit. The first round is not counted: fresh pages cost more."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times[1:]) / per * 1e6


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="halfmoon-bench-"))
    for body_bytes in (100, 1024):
        for batch in (1, 16, 64):
            shutil.rmtree(root, ignore_errors=True)
            store = Store.open(RealDisk(root), StoreSettings(message_index_enable=False), HOST, instant(NOW))
            group = drafts(batch, body_bytes)
            turns = 20_000 // batch

            def append(store: Store = store, group: list[Draft] = group, turns: int = turns) -> None:
                for _ in range(turns):
                    store.append("bench", 0, group, NOW)
                    store.arrivals()
                    store.flush(0, instant(NOW).steady)
                    store.work()

            cost = best(4, append, turns * batch)

            def read(store: Store = store) -> None:
                for offset in range(0, 32_000, 32):
                    store.read("bench", 0, offset, 32)

            read_cost = best(3, read, 1000)
            print(f"append {body_bytes:5} B x {batch:3} a turn: {cost:6.2f} us a message    read of 32: {read_cost:6.2f} us")
            store.stop(instant(NOW))
            for work in store.work():
                work.done(work.run(), instant(NOW))
            store.close(instant(NOW))
    shutil.rmtree(root, ignore_errors=True)
    store = Store.open(RealDisk(root), StoreSettings(), HOST, instant(NOW))
    for _ in range(4):
        for _ in range(4):
            for q in range(4):
                store.append("bench", q, drafts(500, 100), NOW)
    tagged = frozenset([1])
    print(f"read with a tag that nobody has, 8,000 entries: {best(3, lambda: store.read('bench', 0, 0, 32, tagged), 1):8.1f} us")
    start = time.perf_counter()
    count = 0
    while taken := store._indexing.slice(store.end_offset, NOW):
        count += taken
    total = time.perf_counter() - start
    print(f"key index: {total / count * 1e6:6.2f} us a message in slices of {total / (count / SLICE_RECORDS) * 1e3:5.2f} ms")
    store.close(instant(NOW))
    for path in [root]:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
