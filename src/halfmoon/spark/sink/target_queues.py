"""Where rows may go: the queues of a topic, asked for once a task, and what it says when there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from halfmoon.errors import NoRoute, UsageError
from halfmoon.model import MessageQueue

Find = Callable[[str], Sequence[MessageQueue]]
"""Gives the queues that messages of a topic may go to, sorted; raises NoRoute."""


class Targets:
    """The queues of the topics that a task sends to. ``find`` asks for them."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._known: dict[str, list[MessageQueue]] = {}

    def __call__(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic, at least one. Raises UsageError for a topic that is not there or takes no messages."""
        found = self._known.get(topic)
        if found is None:
            try:
                found = list(self._find(topic))
            except NoRoute as exc:
                raise UsageError(f"{exc}. {_REMEDY}") from exc
            if not found:
                raise UsageError(f"topic {topic} has no queue that takes messages. {_REMEDY}")
            self._known[topic] = found
        return found


_REMEDY = "Make the topic (halfmoon topic create), or let it be written (--perm 6), and see that its brokers run"
