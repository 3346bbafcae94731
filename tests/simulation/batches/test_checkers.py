"""The checkers of batch transactions on hand-made contents: what is missing, twice, elsewhere or changed is named."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from halfmoon.model import StoredMessage
from halfmoon.wire.codes import COMPRESSED
from simulation.batches.checkers import BatchEnd, Copy, check_batches
from simulation.batches.queries import Query
from simulation.verdict import by_checker


def query_and_copies() -> tuple[Query, dict[str, list[Copy]]]:
    """A query of two batches that is done, and the records of its messages at one broker."""
    query = Query("query-0", {"broker-a": "10.0.0.1:10911"}, partitions=1, rows=3, target=2, wandering=False, done=1)
    copies = {}
    for offset, row in enumerate(query.expected()):
        attempt = f"attempt-{row.batch}"
        query.seen[attempt] = ["broker-a"]
        query.attempts[row.batch, 0] = {attempt}
        place = query.place(row, attempt)
        message = StoredMessage(
            place.topic, place.queue_id, offset, 100 * offset, row.body, {"KEYS": row.name}, 0, row.sys_flag, 0, "", 0, "", 0, 1, 0,
            100, "",
        )  # fmt: skip
        copies[row.name] = [Copy(place, message)]
    return query, copies


def problems(query: Query, copies: dict[str, list[Copy]]) -> list[str]:
    return by_checker(check_batches([query], BatchEnd(copies, {"broker-a": {}}, Counter())))


def test_whole_batches_in_order_have_no_problems() -> None:
    assert problems(*query_and_copies()) == []


def test_a_message_that_is_missing_and_one_that_is_there_twice_are_named() -> None:
    query, copies = query_and_copies()
    first, second, *_ = copies
    del copies[first]
    copies[second] *= 2
    found = problems(query, copies)
    assert f"lost: {first} is nowhere" in found
    assert f"twice: {second} is there 2 times" in found


def test_a_message_that_was_changed_is_named() -> None:
    query, copies = query_and_copies()
    name = next(iter(copies))
    [copy] = copies[name]
    copies[name] = [copy._replace(message=replace(copy.message, body=b"other", sys_flag=copy.message.sys_flag | COMPRESSED))]
    assert [problem.partition(":")[0] for problem in problems(query, copies)] == ["body", "body"]


def test_a_query_that_did_not_come_to_its_end_is_named_alone() -> None:
    query, copies = query_and_copies()
    query.done = -1
    copies.clear()
    assert problems(query, copies) == [f"progress: {query.id} came to batch -1 of {query.target}"]


def test_a_message_of_no_query_is_named() -> None:
    query, copies = query_and_copies()
    copies["nobody/0/0/0"] = copies[next(iter(copies))]
    assert problems(query, copies) == ["body: 'nobody/0/0/0' is the key of no message"]
