"""What administration returns."""

from __future__ import annotations

from halfmoon.model import MessageQueue
from halfmoon.results import OffsetMove

QUEUE = MessageQueue("orders", "broker-a", 0)


def test_a_move_says_how_many_messages_it_skips_or_repeats() -> None:
    assert OffsetMove(QUEUE, now=10, then=25).difference == 15
    assert OffsetMove(QUEUE, now=10, then=4).difference == -6
    assert OffsetMove(QUEUE, now=None, then=4).difference is None
