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

from halfmoon.effects import Op, Sleep, SteadyTime
from halfmoon.errors import HalfmoonError, HalfRolledBack, UsageError
from halfmoon.events.errors import PublishFailed
from halfmoon.events.event import Event, check_whole
from halfmoon.model import Message

TRIES_MAX = 100
"""Most further attempts that may be asked for."""

TIMEOUT_MS_MAX = 3_600_000

BACK_OFF_MS, BACK_OFF_MAX_MS = 20, 500

log = logging.getLogger("halfmoon.events")


class RetryPolicy(msgspec.Struct, frozen=True):
    """How long one publish goes on: at most ``tries_max`` further attempts, all within ``timeout_ms``. Raises UsageError."""

    tries_max: int = 2
    timeout_ms: int = 3_000

    def __post_init__(self) -> None:
        check_whole("tries_max", self.tries_max, 0, TRIES_MAX)
        check_whole("timeout_ms", self.timeout_ms, 1, TIMEOUT_MS_MAX)


class Attempted(msgspec.Struct):
    """Outcome of the messages of one call, by their places in it: results, or last errors. ``made``: rounds of attempts."""

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
    attempt: Callable[[Sequence[Message], int], Op[Sequence[Any]]],
    events: Sequence[Event],
    messages: Sequence[Message],
    tries: RetryPolicy,
    attempted: Attempted,
) -> Op[Attempted]:
    """Carry out ``attempt(messages, timeout_ms)``, again with those that failed, until all succeed or one cannot; raise nothing.

    Returns ``attempted``, which is filled meanwhile. Repeats are logged. A failure that another try cannot mend ends it at once.
    ``event.attempts`` goes on from failed publishes of the same event, and is 0 after a success.
    """
    results, errors, waiting = attempted.results, attempted.errors, list(range(len(events)))
    steady_ms: int = yield SteadyTime()
    until_ms = steady_ms + tries.timeout_ms
    for made in count(1):
        attempted.made, last = made, made > tries.tries_max
        for place in waiting:
            events[place].attempts += 1
        numbered = [msgspec.structs.replace(messages[place], attempt=events[place].attempts) for place in waiting]
        try:
            outcomes = yield from attempt(numbered, max(1, (until_ms - steady_ms) // (1 if last else 2)))
        except Exception as exc:
            outcomes = [exc] * len(waiting)
        errors.clear()
        for place, outcome in zip(waiting, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                errors[place] = outcome
                events[place].attempts -= isinstance(outcome, UsageError)
            else:
                results[place], events[place].attempts = outcome, 0
        if last or not errors or not all(map(worth_repeating, errors.values())):
            break
        pause_ms = round(min(BACK_OFF_MS * 2 ** min(made - 1, 10), BACK_OFF_MAX_MS) * random.uniform(0.5, 1))
        steady_ms = (yield SteadyTime()) + pause_ms
        if steady_ms >= until_ms:
            break
        waiting = list(errors)
        first = events[waiting[0]]
        log.warning(
            "publish is retried: %s group=%s attempt=%d reason=%s",
            first if len(waiting) == 1 else f"{len(waiting)} events", first.group, first.attempts + 1, errors[waiting[0]],
        )  # fmt: skip
        yield Sleep(pause_ms)
    return attempted


def worth_repeating(error: BaseException) -> bool:
    """Return whether another attempt with the same id may help.

    Not after a half message that was rolled back because of a broken promise: its id is settled.
    """
    return isinstance(error, HalfmoonError) and error.retry and not isinstance(error, HalfRolledBack)
