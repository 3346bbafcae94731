"""Bodies of batch transactions, their checksums, and who coordinates them. Holds shapes; decides nothing.

The requests stand in `halfmoon.wire.headers.batch`.
"""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from halfmoon.wire.json import Body, Bounds
from halfmoon.wire.table import I32, I64

BATCH_BODY = Bounds(4 * 1024 * 1024, 50_000, 200_000, 1024 * 1024, 30_000)
"""What a broker takes as a body here: some 20 ms. 20,000 attempts of one batch are 1.5 MB."""

ATTEMPTS_MAX = 20_000
"""Attempts of one batch at one broker, and of one decision at all brokers together."""


ONE_RUN = "one-run:"
"""How ids begin that nobody will use again: those of jobs without a transactionalId. Only these are forgotten for being idle."""


class BatchPromise(Body):
    """What one participant was sent of one attempt: how many messages, and the sum of their pieces' checksums."""

    count: I64 = 0
    checksum: I64 = 0


class BatchPromises(Body):
    """Attempts at one participant, by name."""

    attempts: dict[str, BatchPromise] = {}


class BatchDecision(Body):
    """Which attempts a batch is made of: participant → attempt → what was promised there. A broker without messages is left out."""

    participants: dict[str, dict[str, BatchPromise]] = {}


class BatchAttempt(Body):
    """One undecided attempt at a broker. ``age_ms`` since its first piece; ``state`` PREPARED, VOTED or APPLYING."""

    batch_id: I64 = 0
    attempt: str = ""
    state: str = "PREPARED"
    count: I64 = 0
    size_bytes: I64 = 0
    age_ms: I64 = 0


class BatchId(Body):
    """One transactional id at a broker.

    ``applied``: the highest batch that this broker published, ``decided``: the highest that it decided as coordinator; -1: none.
    ``waiting``: participants that have not said yet that they applied what was decided. ``aborted``: how many attempts of
    undecided batches no decision may name any more.
    """

    transactional_id: str = ""
    coordinator: str = ""
    applied: I64 = -1
    decided: I64 = -1
    idle_ms: I64 = 0
    aborted: I32 = 0
    waiting: list[str] = []
    attempts: list[BatchAttempt] = []
    attempt_count: I32 = 0
    size_bytes: I64 = 0


class BatchList(Body):
    """Transactional ids of a broker in the order of their names. ``next``: the last one, to go on behind it; None at the end."""

    broker: str = ""
    now_ms: I64 = 0
    ids: list[BatchId] = []
    next: str | None = None
    id_count: I32 = 0
    attempt_count: I32 = 0
    undecided_bytes: I64 = 0
    counters: dict[str, int] = {}


def piece_checksum(topic: str, queue_id: int, first_seq: int, body: bytes | bytearray | memoryview) -> int:
    """Return the checksum of one piece: CRC32 of its body, begun with that of its place.

    The checksum of an attempt at a broker is the sum of those of its pieces there, modulo 2**32 (`sum_of`).
    """
    return crc32(body, crc32(b"%s\x00%d\x00%d" % (topic.encode(), queue_id, first_seq)))


def sum_of(checksums: Iterable[int]) -> int:
    """Return the checksum of an attempt from those of its pieces, whatever their order."""
    return sum(checksums) & 0xFFFFFFFF


def coordinator_of(transactional_id: str, brokers: Iterable[str]) -> str:
    """Return which of some brokers is to coordinate a transactional id that nobody coordinates yet: the one with the highest hash
    of both names, so that those who ask at once choose alike. From then on it is a fact that brokers know (`CoordinateBatches`).

    Raises:
        ValueError: there are no brokers.
    """
    return max(brokers, key=lambda broker: (crc32(f"{transactional_id}\0{broker}".encode()), broker))
