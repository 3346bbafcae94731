"""Old rows are removed in short transactions, and never by a clock that is ahead of the rows."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from halfmoon.events.checks.tokens import create_tables
from halfmoon.events.databases.retention import STEP_ROWS, remove_old
from halfmoon.events.dbapi import DbapiProvider, provider
from halfmoon.events.tables import TOKENS


@pytest.fixture
def database(tmp_path: Path) -> DbapiProvider:
    found = provider(lambda: sqlite3.connect(tmp_path / "shop.db"))
    create_tables(found, (TOKENS,))
    return found


def put(database: DbapiProvider, *created_ms: int) -> None:
    with database.fresh() as rows:
        for number, ms in enumerate(created_ms):
            rows.run("INSERT INTO halfmoon_event VALUES (:id, 1, :ms)", {"id": f"E{number}", "ms": ms})


def left(database: DbapiProvider) -> list[int]:
    with database.fresh() as rows:
        return [ms for (ms,) in rows.all("SELECT created_ms FROM halfmoon_event WHERE state < 2 ORDER BY created_ms")]


def test_what_is_older_than_is_kept_is_removed(database: DbapiProvider) -> None:
    put(database, 1_000, 1_999, 2_000, 3_000)
    assert remove_old(database, TOKENS, "created_ms", 3_000, 1_000) == 2
    assert left(database) == [2_000, 3_000]


def test_a_clock_that_is_ahead_removes_nothing_that_is_young_beside_the_newest_row(database: DbapiProvider) -> None:
    put(database, 1_000, 1_500)
    assert remove_old(database, TOKENS, "created_ms", 99_000_000, 1_000) == 0
    assert left(database) == [1_000, 1_500]


def test_an_empty_table_is_left_alone(database: DbapiProvider) -> None:
    assert remove_old(database, TOKENS, "created_ms", 3_000, 1_000) == 0


def test_many_rows_go_step_by_step_and_those_of_one_millisecond_together(database: DbapiProvider) -> None:
    together, later = [1] * (STEP_ROWS + 500), range(2, STEP_ROWS + 300)
    put(database, *together, *later, 9_000)
    assert remove_old(database, TOKENS, "created_ms", 9_000, 1_000) == len(together) + len(later)
    assert left(database) == [9_000]
