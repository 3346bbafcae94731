"""Attempts of a publish: the same message again, with the same id, within one deadline. Sends nothing by itself.

An attempt that is not the last may use half of what is left of the deadline, so that an answer that was lost leaves time for a
repeat.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgspec

from halfmoon.errors import HalfmoonError, HalfRolledBack, UsageError
from halfmoon.events.errors import PublishFailed
from halfmoon.events.event import Event, check_whole
from halfmoon.events.publishing.flow import NOW, Attempt, Flow, Pause
from halfmoon.model import Message

TRIES_MAX = 100
"""Most further attempts that may be asked for."""

TIMEOUT_MS_MAX = 3_600_000

BACK_OFF_S, BACK_OFF_MAX_S = 0.02, 0.5

log = logging.getLogger("halfmoon.events")


class RetryPolicy(msgspec.Struct, frozen=True):
    """How long one publish goes on: at most ``tries_max`` further attempts, all within ``timeout_ms``. Raises UsageError."""

    tries_max: int = 2
    timeout_ms: int = 3_000

    def __post_init__(self) -> None:
        check_whole("tries_max", self.tries_max, 0, TRIES_MAX)
        check_whole("timeout_ms", self.timeout_ms, 1, TIMEOUT_MS_MAX)


class Attempted(msgspec.Struct):
    """What became of the messages of one call, by their places in it: results, or last errors. ``made``: rounds of attempts."""

    results: dict[int, Any] = msgspec.field(default_factory=dict)
    errors: dict[int, BaseException] = msgspec.field(default_factory=dict)
    made: int = 0

    def raise_failed(self, events: Sequence[Event], others: str) -> None:
        """Raise where events of the call failed. ``others`` says what became of the rest.

        Raises UsageError as it came, for its message is at fault; PublishFailed: they were not sent, or nobody knows.
        """
        if not self.errors:
            return
        error = next((error for error in self.errors.values() if isinstance(error, UsageError)), next(iter(self.errors.values())))
        if isinstance(error, UsageError):
            raise error
        what = f"{type(error).__name__}: {error}{f'; {others}' if len(events) > 1 else ''}"
        raise PublishFailed([events[place].id for place in self.errors], what, self.made) from error


def attempts(
    step: Callable[[tuple[Message, ...], int], Attempt], events: Sequence[Event], messages: Sequence[Message], tries: RetryPolicy
) -> Flow[Attempted]:
    """Carry out ``step(messages, timeout_ms)``, again with those that failed, until all succeed or one cannot; raise nothing.

    Repeats are logged. A failure that another try cannot mend ends it at once. ``event.attempts`` goes on from failed publishes
    of the same event, and is 0 after a success.
    """
    attempted = Attempted()
    results, errors, waiting = attempted.results, attempted.errors, list(range(len(events)))
    _, steady = yield NOW
    deadline = steady + tries.timeout_ms / 1000
    for made in count(1):
        attempted.made = made
        for place in waiting:
            events[place].attempts += 1
        numbered = tuple(msgspec.structs.replace(messages[place], attempt=events[place].attempts) for place in waiting)
        outcomes = yield step(numbered, _share_ms(tries, made, deadline - steady))
        errors.clear()
        for place, outcome in zip(waiting, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                errors[place] = outcome
                events[place].attempts -= isinstance(outcome, UsageError)
            else:
                results[place], events[place].attempts = outcome, 0
        if not errors:
            break
        _, steady = yield NOW
        pause_s = _pause_s(tries, made, deadline - steady)
        if pause_s is None or not all(map(worth_repeating, errors.values())):
            break
        waiting = list(errors)
        first = events[waiting[0]]
        log.warning(
            "publish is retried: %s group=%s attempt=%d reason=%s",
            first if len(waiting) == 1 else f"{len(waiting)} events", first.group, first.attempts + 1, errors[waiting[0]],
        )  # fmt: skip
        yield Pause(pause_s)
        steady += pause_s
    return attempted


def _share_ms(tries: RetryPolicy, made: int, left_s: float) -> int:
    """Return how long an attempt may take; ``made`` counts it."""
    return max(1, int(left_s * 1000 if made > tries.tries_max else left_s * 500))


def _pause_s(tries: RetryPolicy, made: int, left_s: float) -> float | None:
    """Return how long to wait before the next attempt; None: there is none."""
    pause_s = min(BACK_OFF_S * 2 ** min(made - 1, 10), BACK_OFF_MAX_S) * (0.5 + random.random() / 2)
    return None if made > tries.tries_max or pause_s >= left_s else pause_s


def worth_repeating(error: BaseException) -> bool:
    """Return whether another attempt with the same id may help.

    Not after a half message that was rolled back because of a broken promise: its id is settled.
    """
    return isinstance(error, HalfmoonError) and error.retry and not isinstance(error, HalfRolledBack)
