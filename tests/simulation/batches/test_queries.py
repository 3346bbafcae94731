"""Queries: the same messages at every try, in requests that carry all of them, at queues of their attempt."""

from __future__ import annotations

from simulation.batches.queries import SENDS, Query


def query(*, wandering: bool = False) -> Query:
    made = Query("query-0", {}, 2, 25, 3, wandering, sends=SENDS, seed=7)
    made.seen = {"a": ["broker-a", "broker-b"], "b": ["broker-a", "broker-b"]}
    return made


def test_every_try_of_a_task_has_the_same_messages() -> None:
    assert list(query().task(1, 0)) == list(query().task(1, 0))
    assert len(query().expected()) == 3 * 2 * 25


def test_the_requests_of_a_task_carry_each_message_once_and_no_more_than_asked_for() -> None:
    pieces = query().pieces(1, 0, "a", 3)
    assert sorted(row.name for piece in pieces for row in piece.rows) == sorted(row.name for row in query().task(1, 0))
    assert max(len(piece.rows) for piece in pieces) == 3


def test_only_an_attempt_that_wanders_sends_a_message_elsewhere() -> None:
    calm, wandering = query(), query(wandering=True)
    rows = calm.expected()
    assert all(calm.place(row, "a") == calm.place(row, "b") for row in rows)
    assert any(wandering.place(row, "a") != wandering.place(row, "b") for row in rows)


def test_a_message_may_be_where_the_decided_attempt_sent_it() -> None:
    wandering = query(wandering=True)
    row = next(row for row in wandering.expected() if wandering.place(row, "a") != wandering.place(row, "b"))
    wandering.attempts[row.batch, row.partition] = {"a", "b"}
    assert wandering.places(row) == {wandering.place(row, "a"), wandering.place(row, "b")}
    wandering.chosen[row.batch] = {"b"}
    assert wandering.places(row) == {wandering.place(row, "b")}
