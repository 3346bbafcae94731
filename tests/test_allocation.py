"""How queues are shared out: each strategy's arithmetic, and that every queue has one owner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.allocation import (
    average,
    by_circle,
    consistent_hash,
    strategy,
)
from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue


def queues(count: int, broker: str = "b") -> list[MessageQueue]:
    return [MessageQueue("t", broker, i) for i in range(count)]


def ids(found) -> list[int]:
    return [queue.queue_id for queue in found]


@pytest.mark.parametrize(
    ("count", "members", "shares"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (2, 3, [[0], [1], []]),
        (4, 4, [[0], [1], [2], [3]]),
        (4, 1, [[0, 1, 2, 3]]),
        (0, 2, [[], []]),
        (7, 2, [[0, 1, 2, 3], [4, 5, 6]]),
    ],
)
def test_average_gives_neighbours_and_the_rest_to_the_first(count, members, shares):
    names = [f"c{i}" for i in range(members)]

    assert [ids(average(name, queues(count), names)) for name in names] == shares


def test_by_circle_deals_queues_like_cards():
    assert [ids(by_circle(name, queues(5), ["a", "b"])) for name in "ab"] == [[0, 2, 4], [1, 3]]


@pytest.mark.parametrize("name", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
@given(count=st.integers(0, 40), members=st.integers(1, 9))
def test_every_queue_has_exactly_one_owner(name, count, members):
    allocate, names = strategy(name), [f"10.0.0.{i}@1" for i in range(members)]

    shares = [allocate(member, queues(count), names) for member in names]

    assert sorted(queue for share in shares for queue in share) == queues(count)


@pytest.mark.parametrize("name", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_who_is_not_a_member_gets_nothing(name):
    assert strategy(name)("stranger", queues(4), ["a", "b"]) == []


def test_consistent_hash_moves_little_when_a_member_joins():
    before = {queue: name for name in "abcd" for queue in consistent_hash(name, queues(100), list("abcd"))}
    after = {queue: name for name in "abcde" for queue in consistent_hash(name, queues(100), list("abcde"))}

    assert all(after[queue] in (before[queue], "e") for queue in before)


def test_an_unknown_strategy_is_an_error_that_names_the_known_ones():
    with pytest.raises(UsageError, match="AVG_BY_CIRCLE"):
        strategy("FAIR")
