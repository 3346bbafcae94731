"""The index of messages that wait for a point in time: order, removal, and what a rebuilt one holds."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from halfmoon.store.timer import index as timer_index
from halfmoon.store.timer.index import TimerIndex


def everything(index: TimerIndex) -> list[tuple[int, int]]:
    return list(index.walk((-1, -1)))


@pytest.mark.parametrize("spread", [1, 50, 10**9])
def test_any_sequence_of_steps_agrees_with_a_sorted_list(monkeypatch: pytest.MonkeyPatch, spread: int) -> None:
    monkeypatch.setattr(timer_index, "_BLOCK_MAX", 8)
    random, index, model = Random(spread), TimerIndex(), set()
    for offset in range(2000):
        pair = (random.randrange(spread), offset)
        index.insert(*pair)
        model.add(pair)
        if random.random() < 0.3:
            gone = random.choice(sorted(model))
            assert index.remove(*gone)
            assert not index.remove(*gone)
            model.discard(gone)
        if random.random() < 0.1:
            ripe = index.ripe(random.randrange(spread), 5)
            index.remove_first(ripe)
            model -= set(ripe)
        assert index.count == len(model)
        assert index.first_due() == min(model, default=(None,))[0]
        now = random.randrange(-1, spread + 1)
        assert index.due_count(now) == sum(due <= now for due, _ in model)
    assert everything(index) == sorted(model)
    assert all(index.has(*pair) for pair in model)
    assert not index.has(spread + 1, 0)
    assert index.lowest(9999) <= min(offset for _, offset in model)
    behind = sorted(model)[len(model) // 2]
    assert list(index.walk(behind)) == [pair for pair in sorted(model) if pair > behind]
    for pair in sorted(model):
        index.remove(*pair)
    assert (everything(index), index.first_due(), index.lowest(9999)) == ([], None, 9999)


def test_the_lowest_offset_is_found_again_after_removals() -> None:
    index = TimerIndex()
    for offset in range(100):
        index.insert(1000 - offset, offset)
    for offset in range(60):
        index.remove(1000 - offset, offset)

    assert index.lowest(100) == 60


@pytest.mark.parametrize("dues", [[5] * 300, [*range(300, 0, -1)], [1] * 200 + [10**12] * 100 + [7] * 50, []])
def test_many_at_once_are_in_order_and_those_of_one_time_by_offset(monkeypatch: pytest.MonkeyPatch, dues: list[int]) -> None:
    monkeypatch.setattr(timer_index, "_SORTED_AT_ONCE", 16)
    monkeypatch.setattr(timer_index, "_BLOCK_MAX", 16)
    index = TimerIndex()

    index._fill(array("q", dues), array("q", range(len(dues))))

    assert everything(index) == sorted(zip(dues, range(len(dues))))
    assert index.count == len(dues)
