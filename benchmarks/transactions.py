"""Prices of the transaction index: open after a kill, a pass over what is pending, memory, entering, and making it anew.

Run ``python benchmarks/transactions.py index [DIR]``; the figures are printed, nothing is asserted. Milliseconds are processor time
of this process, the best of three; the page cache is warm. A store of 10,000,000 half messages takes 3 GB of disk.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from halfmoon.effects import Work
from halfmoon.hot import ENTRY_BYTES
from halfmoon.instant import instant
from halfmoon.model import java_hash
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store import Draft, Store, StoreSettings
from halfmoon.store.layout import HALF_TOPIC, OP_TOPIC
from halfmoon.store.transactions.index import TransactionIndex

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
NOW = int(time.time() * 1000) - 600_000
GROUPS = [f"group-{number}" for number in range(10)]
TURN = 1000
SETTINGS = StoreSettings(message_index_enable=False)


def opened(root: Path) -> tuple[Store, TransactionIndex]:
    """Open both."""
    disk = RealDisk(root)
    store = Store.open(disk, SETTINGS, HOST, instant(NOW))
    return store, TransactionIndex.open(disk, store, SETTINGS, settled_below=0, now=instant(NOW).steady)


def carry_out(store: Store, index: TransactionIndex, now: int) -> None:
    """Do what store and index left to be done."""
    works: list[Work[object]]
    while works := [*store.work(), *index.work()]:
        for work in works:
            work.done(work.run(), instant(now))


def fill(root: Path, count: int, pending: int, *, spread: bool) -> tuple[float, float]:
    """Make a store with so many half messages, some of them pending; return the prices of entering, us a half and a decision.

    ``spread``: the pending ones lie among the others at equal distances; else they are the last.
    """
    store, index = opened(root)
    rest = b"\x02TRAN_MSG\x01true\x02REAL_TOPIC\x01bench\x02REAL_QID\x010\x02UNIQ_KEY\x01u\x02"
    properties = [b"PGROUP\x01" + group.encode() + rest for group in GROUPS]
    hashes = [java_hash(group) for group in GROUPS]
    step = max(1, count // max(1, pending))
    now, entering, deciding, decided = NOW, 0.0, 0.0, 0
    for start in range(0, count, TURN):
        drafts: list[Draft] = [(b"h", properties[i * 10 // TURN], 0, 0, now, HOST, 0, 0, 0) for i in range(TURN)]
        appended = store.append(HALF_TOPIC, 0, drafts, now)
        entries, each = appended.entries, TURN // 10 * ENTRY_BYTES
        begin = time.process_time()
        for number, group_hash in enumerate(hashes):
            index.prepared(start + number * TURN // 10, entries[number * each :][:each], now // 1000, group_hash)
        entering += time.process_time() - begin
        left = [at for at in range(start, start + TURN) if (at % step == 0 if spread else at >= count - pending)]
        done = sorted(set(range(start, start + TURN)) - set(left))
        if done:
            ops: list[Draft] = [(b"%d" % at, b"TAGS\x01d\x02", 0, 0, now, HOST, 0, 0, 100) for at in done]
            written = store.append(OP_TOPIC, 0, ops, now)
            begin = time.process_time()
            index.decided(done, written.entries, 0)
            deciding += time.process_time() - begin
            decided += len(done)
        now += 20  # 50,000 messages a second
        store.arrivals()
        store.tick(instant(now))
        index.tick(instant(now).steady)
        carry_out(store, index, now)
    return entering / count * 1e6, deciding / max(1, decided) * 1e6


def cpu_ms(work: Callable[[], object]) -> float:
    """Return the processor time of some work."""
    begin = time.process_time()
    work()
    return (time.process_time() - begin) * 1e3


def one_pass(index: TransactionIndex) -> int:
    """Look at everything that is pending, a slice of a round at a time."""
    found, at = 0, 0
    while at < index.end:
        halves, at = index.pending(at, 64)
        found += len(halves)
    return found


def anonymous_bytes() -> int:
    """Memory of this process that is not a mapped file."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return 0


def reopened(root: Path) -> None:
    """In a process of its own, after the one before ended without stopping its store: what a start costs, and what stays."""
    disk = RealDisk(root)
    store = Store.open(disk, SETTINGS, HOST, instant(NOW))
    before, begin = anonymous_bytes(), time.process_time()
    index = TransactionIndex.open(disk, store, SETTINGS, settled_below=0, now=instant(NOW).steady)
    opening = (time.process_time() - begin) * 1e3
    memory = anonymous_bytes() - before
    passes = [cpu_ms(lambda: one_pass(index)) for _ in range(4)]
    longest = 0.0
    at = 0
    while at < index.end:
        begin = time.process_time()
        _, at = index.pending(at, 64)
        longest = max(longest, time.process_time() - begin)
    print(
        f"  open after a kill: {opening:8.1f} ms    {index.pending_count:,} pending of {index.end:,}"
        f"    anonymous memory {memory / 1024:,.0f} KiB, {memory / max(1, index.pending_count):.2f} bytes a pending message"
    )
    print(
        f"  a pass over what is pending: first {passes[0]:8.2f} ms, then {min(passes[1:]):8.2f} ms;"
        f" longest call for at most 64 messages {longest * 1e3:.2f} ms"
    )
    print(f"  rebuilt: {index.rebuilt}")


def index_part(root: Path) -> None:
    """Print the prices of the index."""
    for count, pending, spread in (
        (1_000_000, 1_000_000, False), (1_000_000, 10, True), (10_000_000, 10, True),
    ):  # fmt: skip
        shutil.rmtree(root, ignore_errors=True)
        command = [sys.executable, __file__]
        print(f"{count:,} half messages, {pending:,} pending{' spread evenly' if spread else ''}")
        subprocess.run([*command, "fill", str(root), str(count), str(pending), str(int(spread))], check=True)
        subprocess.run([*command, "reopened", str(root)], check=True)
        if count == 1_000_000:
            shutil.rmtree(root / "transaction" / "statetable")
            print("  without its state table:")
            subprocess.run([*command, "reopened", str(root)], check=True)
    shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    """Run the part that is asked for."""
    part, *rest = sys.argv[1:] or ["index"]
    if part == "fill":
        entering, deciding = fill(Path(rest[0]), int(rest[1]), int(rest[2]), spread=rest[3] == "1")
        print(f"  entering: {entering:.2f} us a half message, {deciding:.2f} us a decision")
    elif part == "reopened":
        reopened(Path(rest[0]))
    else:
        index_part(Path(rest[0]) if rest else Path(tempfile.mkdtemp(prefix="halfmoon-bench-")))


if __name__ == "__main__":
    main()
