"""Bodies of batch transactions, their checksums, and the choice of the coordinator. Holds shapes; decides nothing.

The requests are in `halfmoon.wire.headers.batch`.
"""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from halfmoon.wire.json import Body, Bounds
from halfmoon.wire.table import I32, I64

BATCH_BODY = Bounds(4 * 1024 * 1024, 50_000, 200_000, 1024 * 1024, 30_000)
"""Bounds of these bodies at a broker: about 20 ms. 20,000 attempts of one batch are 1.5 MB."""

ATTEMPTS_MAX = 20_000
"""Bound of attempts of one batch at one broker, and of one decision at all brokers together."""


ONE_RUN = "one-run:"
"""Prefix of ids that are used by one run only, of jobs without a transactionalId. Only these expire when idle."""


class BatchPromise(Body):
    """Part of an attempt at one participant: number of messages, and the sum of their pieces' checksums."""

    count: I64 = 0
    checksum: I64 = 0


class BatchPromises(Body):
    """Attempts at one participant, by name."""

    attempts: dict[str, BatchPromise] = {}


class BatchDecision(Body):
    """Attempts that form a batch: participant → attempt → promise. Brokers without messages are left out."""

    participants: dict[str, dict[str, BatchPromise]] = {}


class BatchAttempt(Body):
    """Undecided attempt at a broker. ``age_ms`` since its first piece; ``state`` PREPARED, VOTED or APPLYING."""

    batch_id: I64 = 0
    attempt: str = ""
    state: str = "PREPARED"
    count: I64 = 0
    size_bytes: I64 = 0
    age_ms: I64 = 0


class BatchId(Body):
    """Transactional id at a broker.

    ``applied``: the highest batch that this broker published, ``decided``: the highest that it decided as coordinator; -1: none.
    ``waiting``: participants that have not yet reported that they applied the decision. ``aborted``: number of attempts of
    undecided batches that no decision may name any more.
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
    """Page of a broker's transactional ids, ordered by name. ``next``: the id after which the next page begins; None: end."""

    broker: str = ""
    now_ms: I64 = 0
    ids: list[BatchId] = []
    next: str | None = None
    id_count: I32 = 0
    attempt_count: I32 = 0
    undecided_bytes: I64 = 0
    counters: dict[str, int] = {}


def piece_checksum(topic: str, queue_id: int, first_seq: int, body: bytes | bytearray | memoryview) -> int:
    """Return the checksum of one piece: CRC32 of its position followed by its body.

    The checksum of an attempt at a broker is the sum of those of its pieces there, modulo 2**32 (`sum_of`).
    """
    return crc32(body, crc32(b"%s\x00%d\x00%d" % (topic.encode(), queue_id, first_seq)))


def sum_of(checksums: Iterable[int]) -> int:
    """Return the checksum of an attempt from those of its pieces, whatever their order."""
    return sum(checksums) & 0xFFFFFFFF


def coordinator_of(transactional_id: str, brokers: Iterable[str]) -> str:
    """Return the broker that shall coordinate a new transactional id.

    It is the one with the highest hash of both names, so that concurrent clients choose the same. Brokers record the choice
    (`CoordinateBatches`).

    Raises:
        ValueError: there are no brokers.
    """
    return max(brokers, key=lambda broker: (crc32(f"{transactional_id}\0{broker}".encode()), broker))
