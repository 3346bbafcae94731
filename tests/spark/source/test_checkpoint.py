"""Offsets of the checkpoint: one text for one position, nothing read twice or left out, losses told."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.data.queue_offsets import losses
from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue
from halfmoon.spark.source.checkpoint import (
    Position,
    backlog_count,
    entry_offsets,
    next_position,
    position_from_json,
    ranges_between,
    share_limit,
    start_to_json,
)

Q = [MessageQueue("orders", "a", number) for number in range(12)]


def test_the_text_is_the_same_in_whatever_order_queues_were_found():
    ends = {queue: queue.queue_id * 3 for queue in Q}
    mixed = list(ends)
    Random(1).shuffle(mixed)

    assert json.dumps(Position(ends, {}).to_json()) == json.dumps(Position({queue: ends[queue] for queue in mixed}, {}).to_json())
    assert list(Position(ends, {}).to_json()["end"]["orders"]["a"]) == [str(number) for number in range(12)]


def test_a_position_comes_back_from_its_text_and_is_written_the_same():
    found = Position({Q[0]: 5, Q[10]: 7, Q[2]: 1}, {Q[10]: 3}, {("orders", "b"): 8, ("orders", "a"): 7}, 9)
    text = json.dumps(found.to_json())

    assert position_from_json(json.loads(text)) == found
    assert json.dumps(position_from_json(json.loads(text)).to_json()) == text


def test_a_start_is_no_position():
    assert position_from_json(start_to_json("latest")) is None


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"v": 2, "start": "latest"},
        {"v": 1},
        {"v": 1, "end": 5},
        {"v": 1, "end": {"orders": {"a": {"x": 1}}}},
        {"v": 1, "end": {"orders": {"a": {"0": -1}}}},
        {"v": 1, "end": {"orders": {"a": {"0": "1"}}}},
        {"v": 1, "end": {}, "more": 1},
        {"v": 1, "end": {}, "since": "5"},
        {"v": 1, "end": {}, "born": 5},
        {"v": 1, "end": {}, "born": {"orders": 5}},
        {"v": 1, "end": {}, "born": {"orders": {"a": "5"}}},
        {"orders": {"0": 5}},
    ],
)
def test_an_offset_that_is_not_ours_is_refused(found: dict[str, object]):
    with pytest.raises(UsageError):
        position_from_json(found)


def test_a_new_queue_enters_at_its_oldest_message_and_is_read_from_there():
    at = Position({Q[0]: 5}, {})
    found = next_position(at.ends, {Q[0]: (0, 5), Q[1]: (3, 9)}, None)

    assert found.entered == {Q[1]: 3}
    assert [str(part) for part in ranges_between(at, found)] == ["orders a queue 1 [3, 9)"]


def test_a_queue_that_vanished_keeps_its_place_and_goes_on_from_it():
    at = Position({Q[0]: 5, Q[1]: 7}, {})
    without = next_position(at.ends, {Q[0]: (0, 6)}, None)
    again = next_position(without.ends, {Q[0]: (0, 6), Q[1]: (0, 9)}, None)

    assert without.ends == {Q[0]: 6, Q[1]: 7}
    assert [(part.queue, part.begin, part.end) for part in ranges_between(without, again)] == [(1, 7, 9)]


def test_nothing_new_leaves_the_position_as_it_is():
    at = Position({Q[0]: 5}, {})

    assert next_position(at.ends, {Q[0]: (0, 5)}, 10) == at


@pytest.mark.parametrize(("bounds", "says"), [((8, 20), "offsets 5 to 7 are gone"), ((0, 2), "it ends at 2")])
def test_what_is_gone_is_told_and_the_queue_enters_again_where_it_is_let(bounds: tuple[int, int], says: str):
    at = Position({Q[0]: 5}, {})
    (loss,) = losses(at.ends, {Q[0]: bounds})

    assert says in str(loss)
    assert [(part.begin, part.end) for part in ranges_between(at, next_position(at.ends, {Q[0]: bounds}, None))] == [bounds]


def test_a_damaged_checkpoint_is_refused():
    with pytest.raises(UsageError, match="do not fit together"):
        ranges_between(Position({Q[0]: 9}, {}), Position({Q[0]: 5}, {}))
    with pytest.raises(UsageError, match="do not fit together"):
        ranges_between(None, Position({Q[0]: 5}, {}))


@given(st.dictionaries(st.sampled_from(Q), st.integers(1, 10**12)), st.integers(1, 10**9))
def test_a_limit_is_kept_and_used_up_in_proportion_but_each_queue_has_its_turn(backlog: dict[MessageQueue, int], limit: int):
    found = share_limit(backlog, limit)
    total = sum(backlog.values())

    assert sum(found.values()) == min(total, max(limit, len(backlog)))
    assert all(1 <= found[queue] <= backlog[queue] for queue in backlog)
    if total > limit:  # one of each queue comes first, so that much the others may have less
        assert all(abs(found[queue] - backlog[queue] * limit / total) <= 1 + len(backlog) + 1e-6 * limit for queue in backlog)


def test_a_queue_with_few_messages_is_read_beside_one_with_many():
    backlog = {Q[0]: 6_000, Q[1]: 1}

    assert share_limit(backlog, 100) == {Q[0]: 99, Q[1]: 1}


@given(st.data())
def test_batches_read_everything_once_while_queues_come_and_grow(data: st.DataObject):
    """A stream over queues that appear and grow reads each offset in one batch, whatever the limits."""
    bounds = {Q[0]: (0, 0)}
    before, at = None, Position({Q[0]: 0}, {Q[0]: 0})
    read: dict[int, list[int]] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        bounds = {queue: (low, high + data.draw(st.integers(0, 20))) for queue, (low, high) in bounds.items()}
        if data.draw(st.booleans()):
            low = data.draw(st.integers(0, 5))
            bounds.setdefault(Q[len(bounds)] if len(bounds) < len(Q) else Q[0], (low, low))
        before, at = at, next_position(at.ends, bounds, data.draw(st.none() | st.integers(1, 15)))
        for part in ranges_between(before, position_from_json(json.loads(json.dumps(at.to_json())))):
            read.setdefault(part.queue, []).extend(range(part.begin, part.end))
    assert entry_offsets(at.ends, bounds) == {}
    for part in ranges_between(at, next_position(at.ends, bounds, None)):
        read.setdefault(part.queue, []).extend(range(part.begin, part.end))

    assert read == {queue.queue_id: list(range(low, high)) for queue, (low, high) in bounds.items() if low < high}


def test_what_waits_is_counted_with_new_queues():
    assert backlog_count({Q[0]: 5}, {Q[0]: (0, 9), Q[1]: (2, 4)}) == 6
