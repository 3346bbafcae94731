"""Reader of a store's own files, where the workers see them: a queue's entries and the log are mapped, never written.

A broker uses them meanwhile, so only offsets are read that it reported as visible: what follows in the files may be stale. Each
record must be the one that its entry names. Follows the layout of RocketMQ 4.9.7.
"""

from __future__ import annotations

import mmap
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from halfmoon.client.ranges import MAX_BYTES, OffsetsLost, Ranges
from halfmoon.errors import BadMessage, UsageError
from halfmoon.hot import MAGIC, MAGIC_V2, RECORD_BYTES_MIN
from halfmoon.model import MessageQueue
from halfmoon.wire.record import RECORD_BYTES_MAX

ENTRY_BYTES, FILLER_SIZE = 20, 0x7FFFFFFF
ENTRIES_MAX = 65_536
"""Entries that are read together."""
COMPARED_S, COMPARED_MAX = 10.0, 10_000
"""Time for which a queue counts as compared, and the number of queues that are remembered."""
FILES_MAX = 64
"""Files mapped by one process; the one used longest ago is unmapped."""

_ENTRY = np.dtype({"names": ["place", "size"], "formats": [">i8", ">i4"], "offsets": [0, 8], "itemsize": ENTRY_BYTES})
_HEAD = np.dtype({
    "names": ["size", "magic", "queue_id", "queue_offset", "place"], "formats": [">i4", ">i4", ">i4", ">i8", ">i8"],
    "offsets": [0, 4, 12, 20, 28], "itemsize": 36,
})  # fmt: skip
_NAME = re.compile(r"[0-9]{20}")
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")

Ints = NDArray[np.int64]
Missing = Callable[[int, int], object]


class _Mapped(NamedTuple):
    """Mapped file and its inode."""

    data: mmap.mmap
    inode: int


class StoreFiles:
    """Reader of ranges of queues of one broker from its store's directory, as `Ranges.read` reads from the broker.

    ``client`` asks the broker for one record of a queue, once in `COMPARED_S`, and compares it with the files. Safe to use from
    many threads.
    """

    files_max = FILES_MAX

    def __init__(self, client: Ranges, directory: str) -> None:
        self._client, self._directory = client, directory
        self._mapped: dict[str, _Mapped] = {}
        self._compared: dict[MessageQueue, float] = {}
        self._lock = threading.Lock()

    def read(
        self, broker: str, topic: str, queue: int, begin: int, end: int, max_bytes: int = MAX_BYTES, missing: Missing | None = None
    ) -> Iterator[bytes]:
        """Yield the records of [begin, end) as stored, in order; the broker must have reported all of them as visible.

        ``missing(begin, end)`` is called for offsets without a message; without it they are an error.

        Raises:
            UsageError: there is no such queue in the directory, or it belongs to another broker.
            OffsetsLost: offsets hold no message and ``missing`` is None.
            BadMessage: an entry points at bytes that are not its record.
        """
        if not 0 <= begin <= end or queue < 0 or max_bytes < 1:
            raise UsageError(f"no range: queue {queue}, offsets {begin} to {end}, {max_bytes} bytes at once")
        name = self._client.on_wire(topic)
        if not _TOPIC.fullmatch(name):
            raise UsageError(f"the topic {name[:200]!r} cannot name a directory")
        return self._read_queue(MessageQueue(name, broker, queue), begin, end, max_bytes, missing)

    def _read_queue(self, queue: MessageQueue, begin: int, end: int, max_bytes: int, missing: Missing | None) -> Iterator[bytes]:
        reader, at = _QueueFiles(self, queue), begin
        while at < end:
            records = reader.records(at, end, max_bytes)
            if not records.raw:
                if missing is None:
                    raise OffsetsLost(queue, at, records.reached, records.reached, end)
                missing(at, records.reached)
            elif time.monotonic() - self._compared.get(queue, -COMPARED_S) >= COMPARED_S:
                self._compare(queue, at, records)
            at = records.reached
            if records.raw:
                yield records.raw

    def _compare(self, queue: MessageQueue, offset: int, records: _Records) -> None:
        """Raise UsageError unless the broker has the same record at an offset."""
        expected = self._client.record(queue, offset)
        if records.raw[: records.first_bytes] != expected:
            raise UsageError(
                f"{self._directory} is not the store of {queue.broker_name}: message {offset} of queue {queue.queue_id} of "
                f"{queue.topic} is another there; read from the broker, without these files"
            )
        if len(self._compared) >= COMPARED_MAX:
            self._compared.clear()
        self._compared[queue] = time.monotonic()

    def mapped(self, path: str) -> mmap.mmap | None:
        """Return a file of the directory, mapped; None: it does not exist."""
        full = os.path.join(self._directory, path)
        try:
            inode = os.stat(full).st_ino
            with self._lock:
                known = self._mapped.pop(path, None)
                if known is None or known.inode != inode:
                    with open(full, "rb") as file:
                        known = _Mapped(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), os.fstat(file.fileno()).st_ino)
                self._mapped[path] = known  # the last is the one used last
                while len(self._mapped) > self.files_max:
                    del self._mapped[next(iter(self._mapped))]
                return known.data
        except FileNotFoundError:
            return None

    def names(self, path: str) -> list[int]:
        """Return the offsets in the names of a directory's files, sorted; none where there is no directory."""
        try:
            return sorted(int(name) for name in os.listdir(os.path.join(self._directory, path)) if _NAME.fullmatch(name))
        except FileNotFoundError:
            return []


class _Records(NamedTuple):
    """Records of the offsets below ``reached``, the first of ``first_bytes``; no bytes: none of them exists."""

    reached: int
    raw: bytes = b""
    first_bytes: int = 0


class _QueueFiles:
    """Queue of the directory. File names are listed once, because all ranges were stored before."""

    def __init__(self, files: StoreFiles, queue: MessageQueue) -> None:
        self._files, self._queue = files, queue
        self._path = f"consumequeue/{queue.topic}/{queue.queue_id}"
        self._bases = files.names(self._path)
        self._log_bases = files.names("commitlog")
        if not self._bases or not self._log_bases:
            raise UsageError(
                f"no queue {queue.queue_id} of {queue.topic} in {files._directory}: is it the directory of this broker's store?"
            )

    def records(self, begin: int, end: int, max_bytes: int) -> _Records:
        """Return the records from ``begin`` on that fit and lie together in the files, at least one."""
        first = self._bases[0] // ENTRY_BYTES
        if begin < first:
            return _Records(min(first, end))
        entries = self._entries(begin, end)
        likely = min(max(int(entries["size"][0]), RECORD_BYTES_MIN), RECORD_BYTES_MAX)
        entries = entries[: 2 * max_bytes // likely + 1]  # enough where the others are about as long as the first
        places, sizes = entries["place"].astype(np.int64), entries["size"].astype(np.int64)
        expired = (sizes == FILLER_SIZE) | (places < self._log_bases[0])
        if expired[0]:
            return _Records(begin + (len(expired) if expired.all() else int(np.argmin(expired))))
        whole = int(np.argmax(expired)) if expired.any() else len(expired)
        wrong = (sizes[:whole] < RECORD_BYTES_MIN) | (sizes[:whole] > RECORD_BYTES_MAX)
        if wrong.any():
            raise BadMessage(
                f"{self._path}: the entry of message {begin + int(np.argmax(wrong))} is none; are the files up to date?"
            )
        taken_count = max(1, int(np.searchsorted(np.cumsum(sizes[:whole]), max_bytes, "right")))
        return self._log(begin, places[:taken_count], sizes[:taken_count])

    def _entries(self, begin: int, end: int) -> NDArray[Any]:
        """Return entries from ``begin`` on, of one file."""
        at = begin * ENTRY_BYTES
        base = max(base for base in self._bases if base <= at)
        data = self._files.mapped(f"{self._path}/{base:020d}")
        count = 0 if data is None else min(end - begin, ENTRIES_MAX, (len(data) - (at - base)) // ENTRY_BYTES)
        if data is None or count < 1:
            raise BadMessage(f"{self._path}: no file holds the entry of message {begin}; are the files up to date?")
        return np.frombuffer(data, _ENTRY, count, at - base)

    def _log(self, begin: int, places: Ints, sizes: Ints) -> _Records:
        """Return the records at places of the log, of the file of the first one."""
        base = max(base for base in self._log_bases if base <= places[0])
        data = self._files.mapped(f"commitlog/{base:020d}")
        if data is None:
            return _Records(begin + int(np.count_nonzero(places < base + self._log_file_bytes(base))))
        ends = places + sizes
        count = int(np.searchsorted(ends > base + len(data), True)) if len(ends) else 0
        if count == 0:
            raise BadMessage(f"commitlog/{base:020d}: message {begin} would lie beyond its end; are the files up to date?")
        places, sizes, ends = places[:count] - base, sizes[:count], ends[:count] - base
        apart = np.flatnonzero(places[1:] != ends[:-1])
        starts, stops = places[np.append(0, apart + 1)].tolist(), ends[np.append(apart, count - 1)].tolist()
        view = memoryview(data)
        raw = b"".join([view[start:stop] for start, stop in zip(starts, stops)])
        self._check(raw, begin, places + base, sizes)
        return _Records(begin + count, raw, int(sizes[0]))

    def _log_file_bytes(self, base: int) -> int:
        later = [other for other in self._log_bases if other > base]
        return later[0] - base if later else 2**62

    def _check(self, raw: bytes, begin: int, places: Ints, sizes: Ints) -> None:
        """Raise BadMessage unless each record is the one that its entry says."""
        starts = np.cumsum(sizes) - sizes
        heads = sliding_window_view(np.frombuffer(raw, np.uint8), _HEAD.itemsize)[starts].view(_HEAD)[:, 0]
        matches = (heads["size"] == sizes) & (heads["place"] == places) & (heads["queue_id"] == self._queue.queue_id)
        matches &= heads["queue_offset"] == np.arange(begin, begin + len(sizes))
        matches &= (heads["magic"] == MAGIC) | (heads["magic"] == MAGIC_V2)
        if not matches.all():
            wrong = int(np.argmin(matches))
            raise BadMessage(f"{self._path}: message {begin + wrong} is not at {int(places[wrong])} of the log")
