"""Target queues of rows, asked for once a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from halfmoon.errors import NoRoute, UsageError
from halfmoon.model import MessageQueue

Find = Callable[[str], Sequence[MessageQueue]]
"""Function that returns the writable queues of a topic, sorted; raises NoRoute."""


class TargetQueues:
    """Queues of the topics that a task sends to. ``find`` asks for them."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._known: dict[str, list[MessageQueue]] = {}

    def __call__(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic, at least one. Raises UsageError for a topic that does not exist or takes no messages."""
        queues = self._known.get(topic)
        if queues is None:
            try:
                queues = list(self._find(topic))
            except NoRoute as exc:
                raise UsageError(f"{exc}. {_REMEDY}") from exc
            if not queues:
                raise UsageError(f"topic {topic} has no queue that takes messages. {_REMEDY}")
            self._known[topic] = queues
        return queues


_REMEDY = "Create the topic (halfmoon topic create), or make it writable (--perm 6), and check that its brokers run"
