"""Tests of what batch transactions share: checksums of pieces, and who coordinates an id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.wire.bodies.batches import coordinator_of, piece_checksum, sum_of

PIECES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 9), st.binary(max_size=20)), max_size=8)


@given(PIECES, st.randoms(use_true_random=False))
def test_the_checksum_of_an_attempt_does_not_depend_on_the_order_of_its_pieces(pieces, random):
    checksums = [piece_checksum(*piece) for piece in pieces]
    shuffled = list(checksums)
    random.shuffle(shuffled)
    assert sum_of(shuffled) == sum_of(checksums)


def test_a_piece_at_another_place_has_another_checksum():
    body = b"the same"
    assert len({piece_checksum(*place, body) for place in (("t", 0, 0), ("t", 1, 0), ("t", 0, 1), ("u", 0, 0))}) == 4


def test_one_more_broker_moves_only_the_ids_that_go_to_it():
    ids = [f"query-{number}" for number in range(300)]
    before = {id: coordinator_of(id, ["a", "b", "c"]) for id in ids}
    after = {id: coordinator_of(id, ["d", "c", "b", "a"]) for id in ids}
    moved = [id for id in ids if before[id] != after[id]]
    assert {after[id] for id in moved} == {"d"}
    assert 30 < len(moved) < 130
    assert set(before.values()) == {"a", "b", "c"}


def test_without_brokers_nobody_coordinates():
    with pytest.raises(ValueError):
        coordinator_of("q", [])
