"""Transactions as operators see them, each with its broker. Values only.

A Halfmoon broker knows all of it. Of any other the half queue is read instead, and ``not_reported`` names what its protocol hides.
"""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from halfmoon.wire.bodies.transactions import SentCheck, Transaction, TransactionStats
from halfmoon.wire.json import Body
from halfmoon.wire.table import I32, I64

PREPARED, COMMITTED, ROLLED_BACK, EXPIRED, UNCLEAR = "PREPARED", "COMMITTED", "ROLLED_BACK", "EXPIRED", "UNCLEAR"
"""States of a transaction. EXPIRED: rolled back by the broker because nobody decided. UNCLEAR: settled, but unknown how."""

READ_FROM_QUEUES = [
    "each check writes the half message anew: checks are counted in copies, and ids are those of the newest copy",
    "when checks were sent, what was answered, and when the next is due are not reported",
]
"""The ``not_reported`` of everything that was derived from a half queue."""


class TransactionAt(Transaction):
    """Half message and its transaction.

    ``since_ms`` is when its age began: for a copy written for a check, when the message was born by its sender's clock.
    """

    broker: str = ""
    address: str = ""
    since_ms: I64 = 0
    not_reported: list[str] = []

    @property
    def last_answer(self) -> str:
        """The answer to the last check, as in `SentCheck`; empty before the first, or when it is not known."""
        return self.checks[-1].answer if self.checks else ""


class PendingPage(Body):
    """Some pending transactions, the oldest first. ``next``: the cursor of those that follow, None at the end."""

    transactions: list[TransactionAt] = []
    next: str | None = None


class TransactionStatsAt(TransactionStats):
    """Pending transactions of one broker by group, and counters since its start; no counters where they are not known."""

    broker: str = ""
    address: str = ""
    not_reported: list[str] = []


class ExpiredTransaction(Body):
    """Copy in TRANS_CHECK_MAX_TIME_TOPIC.

    ``resumed``: a half message of the same id lies behind it in the broker's log. ``committed``: its producer committed it later,
    and it was delivered.
    """

    offset_msg_id: str = ""
    msg_id: str = ""
    group: str = ""
    topic: str = ""
    tag: str = ""
    keys: str = ""
    born_ms: I64 = 0
    expired_ms: I64 = 0
    reason: str = ""
    checks_sent: I32 = 0
    checks: list[SentCheck] = []
    resumed: bool = False
    committed: bool = False
    broker: str = ""
    address: str = ""
    not_reported: list[str] = []


class ExpiredPage(Body):
    """Some expired half messages, the newest first. ``next``: the cursor of those before, None at the end."""

    transactions: list[ExpiredTransaction] = []
    next: str | None = None
