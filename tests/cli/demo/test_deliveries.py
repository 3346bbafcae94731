"""What the consumers of the demo write: a row for each message, and a count where it comes again."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halfmoon.cli.demo.deliveries import Ledger
from halfmoon.cli.demo.ledgers import DELIVERIES, connect


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def rows(directory: Path, table: str) -> list[tuple[Any, ...]]:
    return connect(directory, DELIVERIES).execute(f"SELECT * FROM {table} ORDER BY id").fetchall()


def message(**fields: Any) -> Any:
    return SimpleNamespace(body=json.dumps(fields).encode())


def test_an_order_that_comes_again_is_counted_and_not_doubled(ledger: Ledger, tmp_path: Path):
    for name in ("a", "b", "a"):
        ledger.order(SimpleNamespace(payload={"order": name, "cents": 100}), None)

    assert rows(tmp_path, "deliveries") == [("a", 100, 2), ("b", 100, 1)]


def test_large_orders_have_a_table_of_their_own(ledger: Ledger, tmp_path: Path):
    ledger.large([message(order="a", cents=6000), message(order="b", cents=7000)])
    ledger.large([message(order="b", cents=7000)])

    assert rows(tmp_path, "large") == [("a", 6000, 1), ("b", 7000, 2)]
    assert rows(tmp_path, "deliveries") == []


def test_a_reminder_keeps_its_earliest_delivery(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for seconds in (12.0, 9.5, 11.0):
        monkeypatch.setattr(time, "time", lambda now=seconds: now)
        ledger.reminder([message(order="a", due=10_000)])

    assert rows(tmp_path, "reminders") == [("a", -500, 3)], "it came half a second early once"
