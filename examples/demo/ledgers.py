"""The two SQLite databases of the demo: decisions of the order service, and deliveries to the consumers."""

from __future__ import annotations

import argparse
import sqlite3
from pathlib import Path
from typing import NamedTuple

TOPIC, CODE = "TP_ORDER", "EC_PAID"
GROUP, PRODUCER_GROUP = "S_delivery", "P_orders"
LARGE_GROUP, LARGE_CENTS = "S_audit", 5000
LARGE = f"cents > {LARGE_CENTS}"
"""Filter of the second group, on a property; the broker evaluates it."""
REMINDERS, REMINDERS_GROUP = "order_reminder", "S_reminders"
COPIES = "TP_ORDER_copies"
"""Topic that Spark copies `TOPIC` to."""

ORDERS, DELIVERIES = "orders.sqlite", "deliveries.sqlite"
PLACED, PAID, REFUSED = "placed", "paid", "refused"
"""States of an order. Only placed ones are in doubt."""

_DELIVERY = "id TEXT PRIMARY KEY, number INTEGER NOT NULL, times INTEGER NOT NULL"
"""``number``: cents of an order, or how many ms a reminder came late."""
_SCHEMAS = {
    ORDERS: (
        "orders (id TEXT PRIMARY KEY, cents INTEGER NOT NULL, state TEXT NOT NULL, tx TEXT UNIQUE)",
        "reminders (id TEXT PRIMARY KEY)",
    ),
    DELIVERIES: tuple(f"{table} ({_DELIVERY})" for table in ("deliveries", "large", "reminders")),
}


class Counts(NamedTuple):
    """Progress: orders of each outcome."""

    paid: int
    refused: int
    delivered: int


def connect(directory: Path, name: str) -> sqlite3.Connection:
    """Open one of the databases, made if it is missing. Each commit is on the device, whatever is killed."""
    connection = sqlite3.connect(directory / name, timeout=10, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    for table in _SCHEMAS[name]:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
    return connection


def ids(database: sqlite3.Connection, table: str) -> set[str]:
    """Return the orders of a table."""
    return {row[0] for row in database.execute(f"SELECT id FROM {table}")}


def counts(orders: sqlite3.Connection, deliveries: sqlite3.Connection) -> Counts:
    """Return how many orders were paid, refused and delivered."""
    query = "SELECT count(*) FILTER (WHERE state = ?), count(*) FILTER (WHERE state = ?) FROM orders"
    paid, refused = orders.execute(query, (PAID, REFUSED)).fetchone()
    return Counts(paid, refused, deliveries.execute("SELECT count(*) FROM deliveries").fetchone()[0])


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser for what each process of the demo is given: the directory and the name server."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--nameserver", required=True)
    return parser
