"""What administration returns."""

from __future__ import annotations

from halfmoon.model import MessageQueue
from halfmoon.results import OffsetMove, sums_of

QUEUE = MessageQueue("orders", "broker-a", 0)


def test_a_move_says_how_many_messages_it_skips_or_repeats() -> None:
    assert OffsetMove(QUEUE, now=10, then=25).difference == 15
    assert OffsetMove(QUEUE, now=10, then=4).difference == -6
    assert OffsetMove(QUEUE, now=None, then=4).difference is None


def test_moves_together_say_what_is_consumed_again_and_skipped_and_who_is_online() -> None:
    moves = [OffsetMove(QUEUE, 10, 25, 2), OffsetMove(QUEUE, 10, 4, 1), OffsetMove(QUEUE, None, 4), OffsetMove(QUEUE, 7, 8)]

    assert sums_of(moves) == {"again": 6, "skipped": 16, "online": 2}
    assert sums_of([]) == {"again": 0, "skipped": 0, "online": 0}
