"""Records of batch transactions: pieces of attempts in one queue of a system topic, steps in another.

The body of a piece is the batch of a PrepareBatch request as it came, its properties are the fields of the request. A step is a
small JSON record. The state in memory follows from pieces and steps in the order of the log alone; a snapshot is a step with all of
it, so that older steps may go. Writes and reads records; decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import chain

import msgspec

from halfmoon.broker.names import BATCH_TOPIC
from halfmoon.broker.send.sends import Sends
from halfmoon.conversion import json_decoder
from halfmoon.errors import CorruptRecord
from halfmoon.hot import Draft, tag_hash
from halfmoon.store.entries import QueueEntry, entries, last_with_code
from halfmoon.store.records import whole_record
from halfmoon.store.store import Appended, Store
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.bodies.batches import BatchPromise
from halfmoon.wire.headers.batch import PrepareBatch

PIECES, STEPS = 0, 1
"""Queues of the topic."""
_PAIR = wire_properties.encode({"TAGS": "step"}), tag_hash(b"step")
_SNAPSHOT_PAIR = wire_properties.encode({"TAGS": "snapshot"}), tag_hash(b"snapshot")

Parts = dict[str, dict[str, BatchPromise]]
"""participant → attempt → what was promised"""


class Piece(msgspec.Struct, gc=False):
    """Messages of one queue from one PrepareBatch; ``index`` is the queue offset of its record."""

    partition: int
    first_seq: int
    topic: str
    queue_id: int
    count: int
    checksum: int
    physical_offset: int
    size: int
    index: int


class StoredPiece(msgspec.Struct):
    """A piece of the log and whose it is."""

    id: str
    batch: int
    attempt: str
    coordinator: str
    timeout_ms: int
    store_ms: int
    piece: Piece


class _Step(msgspec.Struct, tag_field="step", tag=str.lower, rename={"id": "q", "batch": "b"}):
    id: str
    batch: int


class Voted(_Step):
    """Attempts were promised to the driver: they stay until the coordinator says what became of them."""

    attempts: list[str]
    coordinator: str


class Applied(_Step):
    """Attempts are decided and being published; all others up to this batch are gone."""

    attempts: list[str]
    coordinator: str


class Finished(_Step):
    """All of a batch is published and durable."""


class Dropped(_Step):
    """An attempt is gone."""

    attempt: str


class Decided(_Step):
    """The coordinator's decision."""

    parts: Parts
    digest: str


class Aborted(_Step):
    """The coordinator's promise that no decision will name an attempt."""

    attempt: str


class Acknowledged(_Step):
    """A participant has applied everything up to a batch."""

    participant: str


class Reported(_Step):
    """The coordinator knows that everything up to a batch is applied here."""


class Coordinated(_Step):
    """Name of the broker that coordinates the id."""

    coordinator: str


class Forgotten(_Step):
    """Nobody used the id for long."""


class SavedAttempt(msgspec.Struct):
    """An attempt without its pieces. ``applying``: the batch that it is published with."""

    batch: int
    name: str
    since_ms: int
    timeout_ms: int
    voted: bool = False
    applying: bool = False


class SavedDecision(msgspec.Struct):
    """A decision and which participants have applied it."""

    batch: int
    parts: Parts
    digest: str
    acknowledged: list[str] = []


class SavedId(msgspec.Struct):
    """All that is known of an id."""

    name: str
    coordinator: str
    touched_ms: int
    applied: int
    reported: int
    last: int
    attempts: list[SavedAttempt] = []
    decisions: list[SavedDecision] = []
    aborted: dict[int, list[str]] = {}


class Snapshot(msgspec.Struct, tag_field="step", tag="snapshot"):
    """Everything, with the queue offset of the first piece that is still needed."""

    ids: list[SavedId]
    pieces_from: int


Step = Voted | Applied | Finished | Dropped | Decided | Aborted | Acknowledged | Reported | Coordinated | Forgotten
decode_step = json_decoder(Step | Snapshot).decode
encode_step = msgspec.json.Encoder().encode

_NAMES = ("Q", "B", "A", "P", "S", "T", "I", "C", "K", "X", "M")
"""Properties of a piece's record: id, batch, attempt, partition, first seq, topic, queue id, count, coordinator, checksum and
timeout in ms."""


class Journal:
    """The two queues of one broker."""

    def __init__(self, store: Store, sends: Sends) -> None:
        self._store, self._sends = store, sends

    # ------------------------------------------------------------ writing

    def write_piece(
        self, header: PrepareBatch, timeout_ms: int, checksum: int, body: bytes, host: bytes, sys_flag: int, now: int
    ) -> Piece:
        """Append a piece. Raises what `Sends.append` does."""
        h = header
        values = (
            h.transactional_id, h.batch_id, h.attempt, h.partition, h.first_seq, h.topic, h.queue_id, h.count, h.coordinator,
            checksum, timeout_ms,
        )  # fmt: skip
        properties = wire_properties.encode({name: str(value) for name, value in zip(_NAMES, values)})
        draft = (body, properties, 0, sys_flag, now, host, 0, 0, 0)
        done = self._append(PIECES, draft, now)
        return Piece(
            h.partition, h.first_seq, h.topic, h.queue_id, h.count, checksum, done.physical_offsets[0], done.sizes[0],
            done.queue_offset,
        )  # fmt: skip

    def write(self, step: Step | Snapshot, now: int) -> int:
        """Append a step; return where its record begins. Raises what `Sends.append` does."""
        properties, code = _SNAPSHOT_PAIR if isinstance(step, Snapshot) else _PAIR
        draft = (encode_step(step), properties, 0, 0, now, bytes(8), 0, 0, code)
        return self._append(STEPS, draft, now).physical_offsets[0]

    def _append(self, queue_id: int, draft: Draft, now: int) -> Appended:
        return self._sends.append(BATCH_TOPIC, queue_id, [draft], now)

    # ------------------------------------------------------------ reading

    def replay(self) -> Iterator[tuple[int, int, StoredPiece | Step | Snapshot]]:
        """Yield (physical offset, store ms, piece or step) in the order of the log, the last snapshot first.

        Pieces before the snapshot are yielded if it may need them. Damaged records are left out.
        """
        snapshot_entry = last_with_code(self._store, BATCH_TOPIC, STEPS, _SNAPSHOT_PAIR[1])
        begin, pieces_from = 0, 0
        first: list[tuple[int, int, StoredPiece | Step | Snapshot]] = []
        if snapshot_entry is not None and (read := self._step(snapshot_entry)) is not None and isinstance(read[2], Snapshot):
            first, begin, pieces_from = [read], snapshot_entry.queue_offset + 1, read[2].pieces_from
        pieces = (self._piece(entry) for entry in entries(self._store, BATCH_TOPIC, PIECES, pieces_from))
        steps = (self._step(entry) for entry in entries(self._store, BATCH_TOPIC, STEPS, begin))
        known = (record for record in merge(_kept(pieces), _kept(steps), key=_place))
        yield from chain(first, known)

    def _step(self, entry: QueueEntry) -> tuple[int, int, StoredPiece | Step | Snapshot] | None:
        record = self._store.record(entry.physical_offset, entry.size)
        if record is None:
            return None
        try:
            parts = whole_record(record)
            return entry.physical_offset, parts.store_ms, decode_step(parts.body)
        except (CorruptRecord, msgspec.MsgspecError):
            return None

    def _piece(self, entry: QueueEntry) -> tuple[int, int, StoredPiece | Step | Snapshot] | None:
        record = self._store.record(entry.physical_offset, entry.size)
        if record is None:
            return None
        try:
            parts = whole_record(record)
        except CorruptRecord:
            return None
        pairs = wire_properties.decode(parts.properties)
        try:
            q, b, a, p, s, t, i, c, k, x, m = (pairs[name] for name in _NAMES)
            piece = Piece(int(p), int(s), t, int(i), int(c), int(x), entry.physical_offset, entry.size, entry.queue_offset)
            stored = StoredPiece(q, int(b), a, k, int(m), parts.store_ms, piece)
        except (KeyError, ValueError):
            return None
        return entry.physical_offset, parts.store_ms, stored


_Read = tuple[int, int, StoredPiece | Step | Snapshot]


def _kept(records: Iterator[_Read | None]) -> Iterator[_Read]:
    return (record for record in records if record is not None)


def _place(read: _Read) -> int:
    return read[0]
