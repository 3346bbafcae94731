"""Bodies of Halfmoon's own requests about transactions, and the file of the broker's uptime. Holds shapes.

`halfmoon.wire.bodies` gives all of these names.
"""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from halfmoon.wire.json import Body
from halfmoon.wire.table import I32, I64


class SentCheck(Body):
    """Check of a half message: time, recipient (a hash of the client id), and answer.

    Answers are NONE, UNKNOWN, COMMIT, ROLLBACK, OPEN and NOT_MINE. ``client``: id and address of the producer, if one
    transaction was queried and the producer is connected; else empty.
    """

    sent_ms: I64 = 0
    producer: str = ""
    answer: str = "NONE"
    client: str = ""


class Transaction(Body):
    """Half message and its transaction. Times are milliseconds since the epoch; 0: never, -1: unknown."""

    index: I64 = 0
    commit_log_offset: I64 = 0
    offset_msg_id: str = ""
    msg_id: str = ""
    state: str = "PREPARED"
    group: str = ""
    topic: str = ""
    queue_id: I32 = 0
    tag: str = ""
    keys: str = ""
    size_bytes: I32 = 0
    born_ms: I64 = 0
    stored_ms: I64 = 0
    checks_sent: I32 = 0
    checks_left: I32 = 0
    next_check_ms: I64 = 0
    producers: I32 = 0
    """Number of live producers of the group."""
    checks: list[SentCheck] = []
    """The last 15, the oldest first."""


class PendingTransactions(Body):
    """Page of undecided half messages, the oldest first. ``next``: start of the next page, -1 at the end."""

    now_ms: I64 = 0
    pending_count: I64 = 0
    next: I64 = -1
    transactions: list[Transaction] = []


class GroupTransactions(Body):
    """Pending transactions of one producer group. ``oldest_ms``: store time of the oldest, -1 if not determined."""

    group: str = ""
    pending: I64 = 0
    oldest_ms: I64 = -1
    producers: I32 = 0


class TransactionStats(Body):
    """Pending transactions, and counters since the start of the broker; ``per_second`` are rates of the last minute by group.

    ``decided_after`` counts decisions by the age of their half messages: under 2 s, then from ``2 ** n`` s to twice as long for n
    from 1 on, and the last all that are older. The broker knows the ages to a second. Empty: not reported.
    """

    now_ms: I64 = 0
    pending_count: I64 = 0
    oldest_ms: I64 = -1
    groups: list[GroupTransactions] = []
    counters: dict[str, int] = {}
    per_second: dict[str, dict[str, float]] = {}
    next_round_ms: I64 = 0
    decided_after: list[int] = []


# ---------------------------------------------------------------- brokerUptime.json


class Downtime(Body):
    """Time span in which the broker did not run: from its last sign of life to the next."""

    begin_ms: I64 = 0
    end_ms: I64 = 0


class UptimeTable(Body):
    """Last sign of life, and the gaps before it. Half messages age only while the broker runs."""

    seen_ms: I64 = 0
    gaps: list[Downtime] = []
