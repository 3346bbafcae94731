"""The Bloom filter's bits are the original's, it never loses a message, and it spares evaluations."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmoon import sql92
from halfmoon.errors import UsageError
from halfmoon.sql92 import Bloom, may_match
from halfmoon.sql92.filter import Filter
from tests.sql92 import reference
from tests.sql92.test_filter import block_of


def test_the_shape_and_the_bits_are_those_of_the_original():
    bloom = Bloom()
    marks = bloom.marks("GID_test", "TopicTest")

    assert (bloom.hash_count, bloom.bit_count, bloom.size_bytes) == (3, 112, 14)
    assert marks.positions == (32, 78, 12)
    assert bloom.marks("please_rename_unique_group_name", "TopicTest").positions == (97, 27, 8)
    assert bloom.bitmap([(marks, sql92.compile("TRUE"))], b"").hex() == "0010000001000000004000000000"
    assert Bloom(20, 64).bit_count == 216
    assert (Bloom(10, 128).hash_count, Bloom(10, 128).bit_count) == (4, 616)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.integers(0, 2**64))
def test_a_no_is_final_and_no_result_depends_on_the_bits(seed):
    random = Random(seed)
    bloom = Bloom(random.choice((5, 20, 60)), random.choice((1, 8, 32)))
    groups = []
    for number in range(random.randint(1, 12)):
        expression = reference.written(reference.condition(random, 2), random)
        groups.append((bloom.marks(f"G{number}", "orders"), sql92.compile(expression)))
    assert groups
    for _ in range(10):
        block = block_of(reference.properties(random))
        bitmap = bloom.bitmap(groups, block)
        for marks, each in groups:
            maybe = may_match(bitmap, marks, stored_ms=2, born_ms=1)
            assert (maybe and each.matches(block)) == each.matches(block)


class _Counting(Filter):
    """Counts what it is asked."""

    asked = 0

    def matches(self, properties: bytes) -> bool:
        """Count, and answer."""
        self.asked += 1
        return super().matches(properties)


def test_evaluations_are_spared():
    wanted = sql92.compile("region = 'eu'")
    one = _Counting(wanted.expression, wanted.tree)
    bloom = Bloom()
    marks = bloom.marks("G", "orders")
    blocks = [f"region\x01{'eu' if number % 100 == 0 else 'us'}\x02".encode() for number in range(1000)]
    bitmaps = [bloom.bitmap([(marks, wanted)], block) for block in blocks]

    found = [at for at, block in enumerate(blocks) if may_match(bitmaps[at], marks, stored_ms=2, born_ms=1) and one.matches(block)]

    assert found == list(range(0, 1000, 100))
    assert one.asked == 10


def test_filters_of_one_expression_are_evaluated_once_a_message():
    wanted = sql92.compile("region = 'eu'")
    one = _Counting(wanted.expression, wanted.tree)
    bloom = Bloom()
    groups = [(bloom.marks(f"G{number}", "orders"), one) for number in range(5)]

    bitmap = bloom.bitmap(groups, b"region\x01eu\x02")

    assert one.asked == 1
    assert all(may_match(bitmap, marks, stored_ms=2, born_ms=1) for marks, _ in groups)


@pytest.mark.parametrize(
    ("bitmap", "stored_ms"), [(None, 2), (b"", 2), (bytes(14), 1), (bytes(14), 0), (bytes(13), 2), (bytes(15), 2)]
)
def test_without_bits_that_speak_of_this_filter_it_must_be_evaluated(bitmap, stored_ms):
    marks = Bloom().marks("G", "orders")

    assert may_match(bitmap, marks, stored_ms=stored_ms, born_ms=1)
    assert not may_match(bytes(14), marks, stored_ms=2, born_ms=1)


def test_marks_of_another_shape_set_no_bits_and_ask_for_evaluation():
    other = Bloom(20, 64).marks("G", "orders")
    bitmap = Bloom().bitmap([(other, sql92.compile("TRUE"))], b"")

    assert bitmap == bytes(14)
    assert may_match(bitmap, other, stored_ms=2, born_ms=1)


@pytest.mark.parametrize(("error_percent", "consumer_count"), [(0, 32), (100, 32), (-1, 32), (20, 0), (20, -1), (20, 10**9)])
def test_a_shape_that_cannot_be_is_refused(error_percent, consumer_count):
    with pytest.raises(UsageError):
        Bloom(error_percent, consumer_count)
