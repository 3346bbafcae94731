"""Count of the demo: rows of databases, half messages, visible messages and what Spark wrote must tell of the same orders."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ledgers import LARGE_CENTS, PAID, PLACED, REFUSED

Order = tuple[str, int | None]
"""An order and its cents, as a message says them; a reminder says no cents."""


class Half(NamedTuple):
    """Half message as the broker's table has it."""

    msg_id: str
    state: str = "COMMITTED"
    last_answer: str = ""


class Spark(NamedTuple):
    """Results of Spark: orders and reminders in its tables, bodies of the copies, the audit of `halfmoon spark txn audit`.

    ``killed_at``: copies that were there when its driver was killed.
    """

    table: Sequence[Order]
    reminders: Sequence[str]
    copies: Sequence[bytes]
    killed_at: int
    audit: dict[str, Any]


class Found(NamedTuple):
    """Everything that is there at the end.

    ``orders`` has cents, state and transaction by order; ``sent`` the orders whose reminder was sent; ``delivered`` cents and how
    often by order; ``delivered_reminders`` by order how many ms late.
    """

    orders: dict[str, tuple[int, str, str | None]]
    sent: set[str]
    delivered: dict[str, tuple[int, int]]
    delivered_large: set[str]
    delivered_reminders: dict[str, int]
    log: Sequence[bytes]
    reminders: Sequence[bytes]
    halves: Sequence[Half]
    pending: int
    spark: Spark | None = None


class Row(NamedTuple):
    """Line of the closing table; ``places`` counts orders in the log, delivered, and in Spark's table and copies."""

    outcome: str
    database: int
    half_messages: str
    places: list[int]
    agrees: bool


def said(bodies: Iterable[bytes]) -> list[Order]:
    """Return what messages say."""
    return [(fields["order"], fields.get("cents")) for fields in map(json.loads, bodies)]


def rows(found: Found) -> list[Row]:
    """Return the closing table."""
    of = {state: {order for order, row in found.orders.items() if row[1] == state} for state in (PLACED, PAID, REFUSED)}
    places = [said(found.log), [(order, cents) for order, (cents, _) in found.delivered.items()]]
    if found.spark is not None:
        places += [found.spark.table, said(found.spark.copies)]
    seen = [{order for order, _ in place} for place in places]
    wrong = any(order in found.orders and cents != found.orders[order][0] for place in places for order, cents in place)
    states: dict[str, list[str]] = {}
    for half in found.halves:
        states.setdefault(half.msg_id, []).append(half.state)
    decided = {tx: order for order, (_, state, tx) in found.orders.items() if tx is not None}
    committed = sum("COMMITTED" in states.get(tx, ()) for tx, order in decided.items() if order in of[PAID])
    refused = sum(set(states.get(tx, ())) == {"ROLLED_BACK"} for tx, order in decided.items() if order in of[REFUSED])
    cut_short = [state for tx, all_states in states.items() if tx not in decided for state in all_states]
    rolled_back = cut_short.count("ROLLED_BACK")

    def row(name: str, orders: set[str], halves: str, expected: int, agrees: bool) -> Row:
        counts = [len(orders & place) for place in seen]
        return Row(name, len(orders), halves, counts, agrees and all(count == expected for count in counts))

    unknown = [len(place - found.orders.keys()) for place in seen]
    paid_agrees = committed == len(of[PAID]) and not wrong
    return [
        row("paid", of[PAID], f"{committed:,} committed", len(of[PAID]), paid_agrees),
        row("refused", of[REFUSED], f"{refused:,} rolled back", 0, refused == len(of[REFUSED])),
        Row("cut short", 0, f"{rolled_back:,} rolled back", unknown, rolled_back == len(cut_short) and not any(unknown)),
        row("in doubt", of[PLACED], f"{found.pending:,} pending", 0, not found.pending and not of[PLACED]),
        _large(found, places, of[PAID]),
        _reminders(found, of[PAID]),
    ]


def _large(found: Found, places: Sequence[Iterable[Order]], paid: set[str]) -> Row:
    """Return the line of the orders that the filter chooses: its consumers have those and no other."""
    wanted = {order for order in paid if found.orders[order][0] > LARGE_CENTS}
    seen = [{order for order, cents in place if cents is not None and cents > LARGE_CENTS} for place in places]
    seen[1] = found.delivered_large
    return Row("by a filter", len(wanted), "", [len(place) for place in seen], all(place == wanted for place in seen))


def _reminders(found: Found, paid: set[str]) -> Row:
    """Return the line of the reminders: each came, none before its time or for an order that is not paid."""
    early = any(late < 0 for late in found.delivered_reminders.values())
    seen = [{order for order, _ in said(found.reminders)}, set(found.delivered_reminders)]
    if found.spark is not None:
        seen.append(set(found.spark.reminders))
    agrees = all(place == found.sent for place in seen) and found.sent <= paid and not early
    return Row("reminders", len(found.sent), "", [len(place) for place in seen], agrees)


def again_visible(found: Found) -> int:
    """Return how many messages of the log are more than one for an order."""
    return len(found.log) - len({order for order, _ in said(found.log)})


def spark_faults(found: Found) -> list[str]:
    """Return in what Spark's copies, table and audit differ from the broker, as sentences."""
    spark = found.spark
    if spark is None:
        return []
    total, audit = len(found.log), spark.audit
    faults = {
        "the driver was not killed in the middle of the copies": not (0 < spark.killed_at < total or total < 3),
        "copies differ from the log": Counter(spark.copies) != Counter(found.log),
        "rows of the table differ from the log": Counter(spark.table) != Counter(said(found.log)),
        "reminders in the table differ from the log": sorted(spark.reminders) != sorted(o for o, _ in said(found.reminders)),
        "the audit finds other states than the broker": audit["states"] != states_at_broker(found.halves),
        "the audit finds more duplicates than the log has": audit["duplicates"] > again_visible(found),
        "the audit finds records without a transaction": audit["orphans"] > 0,
    }
    return [text for text, is_so in faults.items() if is_so]


def states_at_broker(halves: Iterable[Half]) -> dict[str, int]:
    """Return how many transactions are in each state.

    One that was begun again under its id is in that of its last half message, but committed where one of them is.
    """
    last: dict[str, str] = {}
    for half in halves:
        if last.get(half.msg_id) != "COMMITTED":
            last[half.msg_id] = half.state
    return dict(Counter(last.values()))
