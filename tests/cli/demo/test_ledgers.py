"""The databases of the demo: made when they are missing, kept when they are there, and counted."""

from __future__ import annotations

from pathlib import Path

from halfmoon.cli.demo.ledgers import DELIVERIES, ORDERS, PAID, PLACED, REFUSED, Counts, connect, counts, ids


def test_a_database_that_is_opened_again_keeps_its_rows(tmp_path: Path):
    first = connect(tmp_path, DELIVERIES)
    first.execute("INSERT INTO large VALUES ('a', 5001, 1)")
    first.close()

    assert ids(connect(tmp_path, DELIVERIES), "large") == {"a"}
    assert ids(connect(tmp_path, DELIVERIES), "deliveries") == set()


def test_orders_are_counted_by_state_and_those_in_doubt_are_not_decided(tmp_path: Path):
    orders, deliveries = connect(tmp_path, ORDERS), connect(tmp_path, DELIVERIES)
    states = {"a": PAID, "b": PAID, "c": REFUSED, "d": PLACED}
    orders.executemany("INSERT INTO orders VALUES (?, 100, ?, ?)", [(name, state, f"tx-{name}") for name, state in states.items()])
    deliveries.execute("INSERT INTO deliveries VALUES ('a', 100, 3)")

    found = counts(orders, deliveries)

    assert found == Counts(paid=2, refused=1, delivered=1)
    assert found.decided == 3


def test_nothing_is_counted_before_the_first_order(tmp_path: Path):
    assert counts(connect(tmp_path, ORDERS), connect(tmp_path, DELIVERIES)) == (0, 0, 0)
