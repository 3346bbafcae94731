"""The outcome of the demo: databases, half messages, visible messages and what Spark wrote, counted and compared."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from halfmoon.cli.demo.ledgers import LARGE_CENTS, PAID, PLACED, REFUSED, ids
from halfmoon.cli.demo.pipeline import Half, SparkOutcome, SparkResults, compared, pairs


class Outcome(msgspec.Struct):
    """What the closing table says, a line an outcome. ``ready_ms``: how long each start of the broker took.

    Of paid and refused orders: how many the database has, how many of their half messages the broker committed or rolled back,
    how many of their messages it shows, and how many were delivered, each order once. ``in_doubt`` are orders without a decision,
    ``pending`` half messages without one. ``left_behind`` are half messages whose order was decided in another transaction, because
    the service or the broker was killed meanwhile; what no order explains is shown with them. ``by_check`` were decided by the
    answer to a check. ``wrong`` messages say something else than the order. ``large`` orders are paid ones that a filter chooses.
    Of the ``reminders`` that the service sent, how many the log shows and were delivered, each order once; how many came too early
    or for no reason; and how late the later half of them were at least. ``spark`` is what Spark did; None: it took no part,
    and ``no_spark`` says why.
    """

    paid: int
    paid_committed: int
    paid_visible: int
    paid_delivered: int
    refused: int
    refused_rolled_back: int
    refused_visible: int
    refused_delivered: int
    left_behind: int
    left_behind_rolled_back: int
    left_behind_visible: int
    left_behind_delivered: int
    in_doubt: int
    pending: int
    in_doubt_visible: int
    in_doubt_delivered: int
    by_check: int
    again_visible: int
    again_delivered: int
    wrong: int
    large: int
    large_visible: int
    large_delivered: int
    large_wrong: int
    reminders: int
    reminders_visible: int
    reminders_delivered: int
    reminders_wrong: int
    reminders_late_ms: int
    kills: int
    ready_ms: list[int]
    seconds: float
    spark: SparkOutcome | None = None
    no_spark: str = ""

    @property
    def paid_agrees(self) -> bool:
        """Whether every paid order was committed, is visible, was delivered, is in table and copies, and says the same."""
        same = self.paid == self.paid_committed == self.paid_visible == self.paid_delivered
        return same and not self.wrong and self._spark_has("paid", self.paid)

    @property
    def refused_agrees(self) -> bool:
        """Whether every refused order was rolled back, and none of them was ever seen."""
        seen = self.refused_visible or self.refused_delivered
        return self.refused == self.refused_rolled_back and not seen and self._spark_has("refused", 0)

    @property
    def left_behind_agrees(self) -> bool:
        """Whether half messages of transactions that never ended were rolled back, and no message belongs to no order."""
        seen = self.left_behind_visible or self.left_behind_delivered
        return self.left_behind == self.left_behind_rolled_back and not seen and self._spark_has("left_behind", 0)

    @property
    def in_doubt_agrees(self) -> bool:
        """Whether nothing is undecided on either side."""
        open = self.in_doubt or self.pending or self.in_doubt_visible or self.in_doubt_delivered
        return not open and self._spark_has("in_doubt", 0)

    @property
    def large_agrees(self) -> bool:
        """Whether the filter chose all large orders, and nothing else."""
        same = self.large == self.large_visible == self.large_delivered
        return same and not self.large_wrong and self._spark_has("large", self.large)

    @property
    def reminders_agree(self) -> bool:
        """Whether every reminder came, and none before its time."""
        same = self.reminders == self.reminders_visible == self.reminders_delivered
        return same and not self.reminders_wrong and self._spark_has("reminders", self.reminders)

    @property
    def agrees(self) -> bool:
        """Whether all of it agrees."""
        plain = self.paid_agrees and self.refused_agrees and self.left_behind_agrees and self.in_doubt_agrees
        return plain and self.large_agrees and self.reminders_agree and (self.spark is None or self.spark.agrees)

    def _spark_has(self, outcome: str, count: int) -> bool:
        return self.spark is None or self.spark.has(outcome, count)


class Books(NamedTuple):
    """What the two databases hold at the end.

    Of each order its cents; orders, and the message ids of their transactions, by state; orders whose reminder was sent. What was
    delivered: cents and how often, of each order; large orders; and of each reminder how late it was, in ms.
    """

    cents: dict[str, int]
    orders: dict[str, set[str]]
    transactions: dict[str, set[str]]
    reminders: set[str]
    delivered: dict[str, tuple[int, int]]
    delivered_large: set[str]
    delivered_reminders: dict[str, int]


class Held(NamedTuple):
    """What the broker holds at the end: the bodies of visible messages, half messages, how many are pending, and reminders."""

    log: Sequence[bytes]
    halves: Sequence[Half]
    pending: int
    reminders: Sequence[bytes] = ()


def books(orders: sqlite3.Connection, deliveries: sqlite3.Connection) -> Books:
    """Read both databases."""
    rows = orders.execute("SELECT id, cents, state, tx FROM orders").fetchall()
    return Books(
        cents={order: cents for order, cents, _, _ in rows},
        orders={state: {order for order, _, of, _ in rows if of == state} for state in (PLACED, PAID, REFUSED)},
        transactions={state: {tx for _, _, of, tx in rows if of == state} for state in (PAID, REFUSED)},
        reminders=ids(orders, "reminders"),
        delivered={order: (cents, times) for order, cents, times in deliveries.execute("SELECT * FROM deliveries")},
        delivered_large=ids(deliveries, "large"),
        delivered_reminders=dict(deliveries.execute("SELECT id, late_ms FROM reminders")),
    )


def counted(books: Books, held: Held, spark: SparkResults | None = None) -> dict[str, Any]:
    """Compare the databases with each other, with what the broker holds, and with what Spark wrote; return fields of `Outcome`."""
    paid, refused, placed = (books.orders[state] for state in (PAID, REFUSED, PLACED))
    logged, delivered = dict(pairs(held.log)), books.delivered
    unknown = {*logged, *delivered} - books.cents.keys()
    outcomes: dict[str, set[Any]] = {"paid": paid, "refused": refused, "in_doubt": placed, "left_behind": unknown}
    visible = {f"{name}_visible": len(orders.intersection(logged)) for name, orders in outcomes.items()}
    received = {f"{name}_delivered": len(orders.intersection(delivered)) for name, orders in outcomes.items()}
    messages = [*pairs(held.log), *((order, cents) for order, (cents, _) in delivered.items())]
    return {
        **visible,
        **received,
        "paid": len(paid),
        "refused": len(refused),
        "in_doubt": len(placed),
        "again_visible": len(held.log) - len(logged),
        "again_delivered": sum(times - 1 for _, times in delivered.values()),
        "wrong": sum(cents != books.cents.get(order or "") for order, cents in messages),
        **_halves(books, held),
        **_large(books, logged.values()),
        **_reminders(books, held.reminders),
        "spark": None if spark is None else compared(spark, held.log, held.reminders, held.halves, books.orders),
    }


def _halves(books: Books, held: Held) -> dict[str, int]:
    states: dict[str, list[str]] = {}
    for half in held.halves:
        states.setdefault(half.msg_id, []).append(half.state)
    decided = books.transactions[PAID] | books.transactions[REFUSED]
    left_behind = [state for tx, of_tx in states.items() if tx not in decided for state in of_tx]
    return {
        "paid_committed": sum("COMMITTED" in states.get(tx, ()) for tx in books.transactions[PAID]),
        "refused_rolled_back": sum(set(states.get(tx, ())) == {"ROLLED_BACK"} for tx in books.transactions[REFUSED]),
        "left_behind": len(left_behind),
        "left_behind_rolled_back": left_behind.count("ROLLED_BACK"),
        "pending": held.pending,
        "by_check": sum(half.last_answer in ("COMMIT", "ROLLBACK") for half in held.halves),
    }


def _large(books: Books, logged_cents: Iterable[int | None]) -> dict[str, int]:
    large = {order for order in books.orders[PAID] if books.cents[order] > LARGE_CENTS}
    return {
        "large": len(large),
        "large_visible": sum(cents is not None and cents > LARGE_CENTS for cents in logged_cents),
        "large_delivered": len(books.delivered_large & large),
        "large_wrong": len(books.delivered_large - large),
    }


def _reminders(books: Books, bodies: Sequence[bytes]) -> dict[str, int]:
    delivered = books.delivered_reminders
    late_ms = sorted(delivered.values())
    return {
        "reminders": len(books.reminders),
        "reminders_visible": len({order for order, _ in pairs(bodies)}),
        "reminders_delivered": len(delivered.keys() & books.reminders),
        "reminders_wrong": len(delivered.keys() - books.orders[PAID]) + sum(late < 0 for late in late_ms),
        "reminders_late_ms": late_ms[len(late_ms) // 2] if late_ms else 0,
    }
