"""Attempts of a publish: the same message again, with the same id, within one deadline. Sends nothing by itself.

An attempt that is not the last may use half of what is left of the deadline, so that an answer that was lost leaves time for a
repeat.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import msgspec

from halfmoon.errors import HalfmoonError, HalfRolledBack, UsageError
from halfmoon.events.errors import PublishFailed
from halfmoon.events.event import Event, check_whole
from halfmoon.events.publishing.flow import NOW, Flow, Pause, Prepare, Send

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


def attempts(step: Callable[[int, int], Send | Prepare], event: Event, tries: RetryPolicy) -> Flow[tuple[Any, int]]:
    """Carry out ``step(attempt, timeout_ms)`` until it succeeds; return its result and how many attempts were made.

    Repeats are logged. A failure that another try cannot mend ends at once. ``event.attempts`` goes on from failed publishes of
    the same event, and is 0 after a success.

    Raises:
        UsageError: as it came, for the message is at fault.
        PublishFailed: it was not sent, or nobody knows.
    """
    tries_max = tries.tries_max
    _, steady = yield NOW
    deadline = steady + tries.timeout_ms / 1000
    for made in range(1, tries_max + 2):
        left_ms = (deadline - steady) * 1000
        event.attempts += 1
        try:
            result = yield step(event.attempts, max(1, int(left_ms if made > tries_max else left_ms / 2)))
        except UsageError:
            event.attempts -= 1
            raise
        except Exception as exc:
            error = exc
        else:
            event.attempts = 0
            return result, made
        _, steady = yield NOW
        pause = min(BACK_OFF_S * 2 ** (made - 1), BACK_OFF_MAX_S) * (0.5 + random.random() / 2)
        if made > tries_max or not worth_repeating(error) or steady + pause >= deadline:
            break
        log.warning("publish is retried: %s group=%s attempt=%d reason=%s", event, event.group, event.attempts + 1, error)
        yield Pause(pause)
        steady += pause
    raise PublishFailed(event.id, f"{type(error).__name__}: {error}", made) from error


def worth_repeating(error: BaseException) -> bool:
    """Return whether another attempt with the same id may help.

    Not after a half message that was rolled back because of a broken promise: its id is settled.
    """
    return isinstance(error, HalfmoonError) and error.retry and not isinstance(error, HalfRolledBack)
