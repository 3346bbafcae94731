"""The two SQLite databases of the demo: what the order service decided, and what the consumers were given."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple

TOPIC, CODE = "TP_ORDER", "EC_PAID"
GROUP, PRODUCER_GROUP = "S_delivery", "P_orders"
LARGE_GROUP, LARGE_CENTS = "S_audit", 5000
LARGE = f"cents > {LARGE_CENTS}"
"""What a second group wants: a filter on properties, which the broker evaluates."""
REMINDERS, REMINDERS_GROUP = "order_reminder", "S_reminders"
COPIES = "TP_ORDER_copies"
"""Where Spark streams what it finds in `TOPIC`."""
PIPELINE, ROWS = "spark", "rows.json"
"""Spark's directory, and the file in it with the rows of its table: topic, order, cents."""

ORDERS, DELIVERIES = "orders.sqlite", "deliveries.sqlite"

PLACED, PAID, REFUSED = "placed", "paid", "refused"
"""States of an order. Only placed ones are in doubt."""

_SCHEMAS = {
    ORDERS: (
        "CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, cents INTEGER NOT NULL, state TEXT NOT NULL, tx TEXT UNIQUE)",
        "CREATE TABLE IF NOT EXISTS reminders (id TEXT PRIMARY KEY)",
    ),
    DELIVERIES: (
        "CREATE TABLE IF NOT EXISTS deliveries (id TEXT PRIMARY KEY, cents INTEGER NOT NULL, times INTEGER NOT NULL)",
        "CREATE TABLE IF NOT EXISTS large (id TEXT PRIMARY KEY, cents INTEGER NOT NULL, times INTEGER NOT NULL)",
        "CREATE TABLE IF NOT EXISTS reminders (id TEXT PRIMARY KEY, late_ms INTEGER NOT NULL, times INTEGER NOT NULL)",
    ),
}


class Counts(NamedTuple):
    """How far both sides are."""

    paid: int
    refused: int
    delivered: int

    @property
    def decided(self) -> int:
        """Orders that are not in doubt any more."""
        return self.paid + self.refused


def connect(directory: Path, name: str) -> sqlite3.Connection:
    """Open one of the databases, made when it is missing. Every commit is on the device, whatever is killed."""
    connection = sqlite3.connect(directory / name, timeout=10, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    for statement in _SCHEMAS[name]:
        connection.execute(statement)
    return connection


def ids(database: sqlite3.Connection, table: str) -> set[str]:
    """Return the orders that a table has."""
    return {row[0] for row in database.execute(f"SELECT id FROM {table}")}


def counts(orders: sqlite3.Connection, deliveries: sqlite3.Connection) -> Counts:
    """Return how many orders were paid and refused, and how many were delivered."""
    query = "SELECT count(*) FILTER (WHERE state = ?), count(*) FILTER (WHERE state = ?) FROM orders"
    paid, refused = orders.execute(query, (PAID, REFUSED)).fetchone()
    (delivered,) = deliveries.execute("SELECT count(*) FROM deliveries").fetchone()
    return Counts(paid, refused, delivered)
