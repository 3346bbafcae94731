"""The unfinished messages of one queue, and the offset that may be committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halfmoon.client.core.consume.window import Window
from halfmoon.model import MessageQueue
from tests.client.messages import message


def window(*offsets: int) -> Window:
    found = Window(MessageQueue("t", "b", 0))
    found.add([message(offset) for offset in offsets])
    return found


def test_one_stuck_message_holds_the_commit_back():
    found = window(5, 6, 7)

    assert found.remove([message(6)]) == 5
    assert found.remove([message(7)]) == 5
    assert found.remove([message(5)]) == 8


def test_nothing_ever_held_is_nothing_to_commit():
    assert window().commit_offset() == -1


def test_what_is_held_already_is_not_taken_twice():
    found = window(5, 6)

    assert [one.queue_offset for one in found.add([message(6), message(7)])] == [7]
    assert len(found) == 3


def test_what_was_finished_and_is_pulled_again_is_handed_out_once():
    found = window(5, 6)
    found.remove([message(6)])

    found.add([message(6)])

    assert [one.queue_offset for one in found.first(9)] == [5, 6]


def test_bytes_span_and_ends_are_known():
    found = window(5, 9)

    assert (found.size_bytes, found.span(), found.offsets()) == (8, 4, (5, 9))
    found.clear()
    assert (found.size_bytes, found.span(), found.offsets(), len(found)) == (0, 0, (0, 0), 0)


def test_a_message_is_overdue_only_once_the_listener_has_it():
    found = window(5, 6)

    assert found.overdue(10_000, 100) is None
    found.started([message(5)], 1_700_000_000_000, 1_000)
    assert found.overdue(1_100, 100) is None
    assert found.overdue(1_101, 100).queue_offset == 5


@given(st.permutations(range(12)), st.integers(1, 5))
def test_the_commit_offset_never_goes_back_and_never_passes_an_unfinished_message(order, step):
    found, last = window(*range(12)), 0
    left = set(range(12))

    for i in range(0, 12, step):
        left -= set(order[i : i + step])
        offset = found.remove([message(one) for one in order[i : i + step]])
        assert offset == min(left, default=12)
        assert offset >= last
        last = offset
