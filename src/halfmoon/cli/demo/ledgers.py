"""The two SQLite databases of the demo: what the order service wrote and was promised, and what the consumer was given."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple

TOPIC, GROUP, PRODUCER_GROUP, TAG = "order_paid", "S_delivery", "P_orders", "paid"

ORDERS, DELIVERIES = "orders.sqlite", "deliveries.sqlite"

_SCHEMAS = {
    ORDERS: "CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, cents INTEGER NOT NULL, acknowledged TEXT)",
    DELIVERIES: "CREATE TABLE IF NOT EXISTS deliveries (id TEXT PRIMARY KEY, cents INTEGER NOT NULL, times INTEGER NOT NULL)",
}


class Counts(NamedTuple):
    """How far both sides are."""

    written: int
    acknowledged: int
    consumed: int


def connect(directory: Path, name: str) -> sqlite3.Connection:
    """Open one of the databases, made when it is missing. Every commit is on the device, whatever is killed."""
    connection = sqlite3.connect(directory / name, timeout=10, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(_SCHEMAS[name])
    return connection


def counts(orders: sqlite3.Connection, deliveries: sqlite3.Connection) -> Counts:
    """Return how many orders were written and acknowledged, and how many of them were consumed."""
    written, acknowledged = orders.execute("SELECT count(*), count(acknowledged) FROM orders").fetchone()
    (consumed,) = deliveries.execute("SELECT count(*) FROM deliveries").fetchone()
    return Counts(written, acknowledged, consumed)
