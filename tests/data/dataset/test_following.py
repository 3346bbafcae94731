"""Ranges as they come: new messages, queues and topics, and messages that are gone."""

from __future__ import annotations

from typing import Any, cast

import pytest

from halfmoon.client.ranges import Ranges
from halfmoon.data.dataset import following
from halfmoon.data.dataset.following import ranges_as_they_come
from halfmoon.data.options import TopicOptions
from halfmoon.errors import UsageError

Bounds = dict[tuple[str, int], tuple[int, int]]


class Brokers:
    """Answers of a cluster at one moment after the other: bounds, and the births of the topic."""

    def __init__(self, *moments: tuple[Bounds, int]) -> None:
        self._moments = list(moments)
        self.birth = 0

    def bounds(self, topic: str, *, partial: bool) -> Bounds:
        found, self.birth = self._moments.pop(0)
        return found

    def births(self, topic: str) -> dict[str, int]:
        return {"a": self.birth}

    def absent(self, topic: str) -> tuple[str, ...]:
        return ()


def found(count: int, *moments: tuple[Bounds, int], **options: Any) -> list[list[tuple[int, int, int]]]:
    """Return the first ranges that come, as queue, begin and end."""
    come = ranges_as_they_come(TopicOptions(topic=("orders",), **options), cast(Ranges, Brokers(*moments)))
    return [[(span.queue, span.begin, span.end) for span in next(come)] for _ in range(count)]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PAUSE_S", 0)


def test_what_is_there_comes_first_and_then_what_is_new_with_new_queues_from_their_beginning():
    moments = [({("a", 0): (2, 5)}, 7), ({("a", 0): (2, 5)}, 7), ({("a", 0): (2, 6), ("a", 1): (0, 3)}, 7)]

    assert found(2, *moments) == [[(0, 2, 5)], [(0, 5, 6), (1, 0, 3)]]


def test_an_empty_topic_is_followed_from_its_first_message():
    assert found(2, ({("a", 0): (0, 0)}, 7), ({("a", 0): (0, 1)}, 7)) == [[], [(0, 0, 1)]]


@pytest.mark.parametrize(
    ("later", "says", "goes_on"),
    [
        (({("a", 0): (8, 9)}, 7), "offsets 5 to 7 are gone", (0, 8, 9)),
        (({("a", 0): (0, 6)}, 8), "topic orders at a was deleted and created again", (0, 0, 6)),
    ],
)
def test_messages_that_are_gone_are_an_error_or_logged(
    later: tuple[Bounds, int], says: str, goes_on: tuple[int, int, int], caplog: pytest.LogCaptureFixture
):
    first = ({("a", 0): (0, 5)}, 7)

    with pytest.raises(UsageError, match=f"{says}.*fail_on_data_loss=False"):
        found(2, first, later)
    assert found(2, first, later, fail_on_data_loss=False)[1] == [goes_on]
    assert says in caplog.text
