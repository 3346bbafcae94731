"""Requests of transactions: second phase, check-back, and resuming expired half messages. Declares fields, decides nothing."""

from __future__ import annotations

from halfmoon.wire.needs import ADMIN, ADMIN_LOOKS, BY_ACCOUNT, DECIDED, PUB, TO_CLIENTS, account, nothing, stored
from halfmoon.wire.table import I32, I64, Header, request, wire


@request(
    37, "END_TRANSACTION", changes=True, needs=stored("commit_log_offset", PUB, produces="producer_group").but_in(account(DECIDED))
)
class EndTransaction(Header):
    """Commit or roll back a half message. Sent one-way by all clients."""

    producer_group: str
    tran_state_table_offset: I64  # queue offset of the half message
    commit_log_offset: I64  # physical offset of the half message
    commit_or_rollback: I32  # 8 commit, 12 rollback, 0 unknown
    msg_id: str
    from_transaction_check: bool | None = None
    transaction_id: str | None = None
    topic: str | None = None  # 5.x
    broker_name: str | None = wire("bname", None)  # 4.9
    still_open: bool | None = None  # Halfmoon: with 0, the transaction is known and not over; others ignore it
    not_mine: str | None = None  # Halfmoon: "true" with 0, another member must be asked; others ignore it


@request(39, "CHECK_TRANSACTION_STATE", needs=nothing(TO_CLIENTS))
class CheckTransactionState(Header):
    """Ask a producer for the state of a transaction; sent by brokers. One-way, answered by `EndTransaction`.

    The body is the stored half message.
    """

    tran_state_table_offset: I64
    commit_log_offset: I64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None  # 5.x
    broker_name: str | None = wire("bname", None)  # 4.9


@request(323, "RESUME_CHECK_HALF_MESSAGE", changes=True, needs=stored("msg_id", PUB).but_in(BY_ACCOUNT).by_operators())
class ResumeCheckHalfMessage(Header):
    """Resume the checks of an expired half message."""

    msg_id: str | None = None
    topic: str | None = None  # 5.x


# ---------------------------------------------------------------- Halfmoon's own; an Apache broker answers 3


@request(31001, "LIST_PENDING_TRANSACTIONS", since="Halfmoon", needs=ADMIN_LOOKS)
class ListPendingTransactions(Header):
    """Ask for undecided half messages, the oldest first: reply body `PendingTransactions`."""

    group: str | None = None
    start: I64 = 0  # half queue offset to begin at
    count: I32 = 100
    older_than_ms: I64 = 0


@request(31002, "GET_TRANSACTION", since="Halfmoon", needs=ADMIN_LOOKS)
class GetTransaction(Header):
    """Ask for one half message, decided or not, by its unique key, a key, its offset message id, or its offset: body `Transaction`.

    A key that names several transactions is refused with their ids.
    """

    id: str | None = None
    offset: I64 | None = None  # half queue offset, in place of the id


@request(31003, "CHECK_TRANSACTION", since="Halfmoon", changes=True, needs=ADMIN)
class CheckTransaction(Header):
    """Ask a producer about a half message now: reply body `Transaction`."""

    id: str | None = None
    offset: I64 | None = None


@request(31004, "DECIDE_TRANSACTION", since="Halfmoon", changes=True, needs=ADMIN)
class DecideTransaction(Header):
    """Commit or roll back a half message by hand: reply body `Transaction`. The op record names the operator."""

    commit: bool
    operator: str
    id: str | None = None
    offset: I64 | None = None


@request(31005, "GET_TRANSACTION_STATS", since="Halfmoon", needs=ADMIN_LOOKS)
class GetTransactionStats(Header):
    """Ask for pending transactions by group and the counters since the start: reply body `TransactionStats`."""
