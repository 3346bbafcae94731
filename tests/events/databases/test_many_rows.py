"""One INSERT of many rows: every row with its own values, on a real SQLite."""

from __future__ import annotations

import sqlite3

import pytest

from halfmoon.events.databases.many_rows import CHUNK_BYTES, chunks, insert, letters

INSERT = "INSERT INTO halfmoon_event (id, state, created_ms) VALUES (:id, :state, :created_ms)"


@pytest.mark.parametrize("count", [1, 2, 111])
def test_every_row_is_written_with_its_own_values_and_in_order(count: int) -> None:
    rows = [{"id": f"e-{number}", "state": 1, "created_ms": number % 3} for number in range(count)]
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE halfmoon_event (id TEXT, state INTEGER, created_ms INTEGER)")
    connection.execute(*insert(INSERT, rows))
    found = connection.execute("SELECT id, state, created_ms FROM halfmoon_event ORDER BY rowid").fetchall()
    connection.close()
    assert found == [tuple(row.values()) for row in rows]


def test_what_is_equal_in_all_rows_is_given_once_and_one_row_needs_no_other_statement() -> None:
    rows = [{"id": f"e-{number}", "state": 1, "created_ms": 7} for number in range(12)]
    statement, values = insert(INSERT, rows)
    assert len(values) == 14
    assert statement.endswith("(:id_ba, :state, :created_ms), (:id_bb, :state, :created_ms)")
    assert insert(INSERT, rows[:1]) == (INSERT, rows[0])


def test_numbers_as_letters_differ() -> None:
    assert len({letters(number) for number in range(2_000)}) == 2_000
    assert all(letters(number).isalpha() for number in range(200))


def test_rows_are_cut_into_statements_that_servers_take() -> None:
    sizes = [1, CHUNK_BYTES, 5, CHUNK_BYTES - 5, 1, CHUNK_BYTES * 2]
    rows = [{"message": bytes(size)} for size in sizes]
    cut = list(chunks(rows, "message"))
    assert [len(row["message"]) for chunk in cut for row in chunk] == sizes
    assert all(len(chunk) == 1 or sum(len(row["message"]) for row in chunk) <= CHUNK_BYTES for chunk in cut)
    assert [len(chunk) for chunk in cut] == [1, 1, 2, 1, 1]
