"""Half messages of the publisher's group that wait for a decision, and those that expired, as the brokers report them.

For the admin page and the command.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from halfmoon import Admin
from halfmoon.client.lifecycle import signing
from halfmoon.errors import HalfmoonError
from halfmoon.events.django.configuration import ProjectConfiguration

COUNT_MAX = 200


class UndecidedHalf(NamedTuple):
    """One half message as `Admin` tells of it, and how long it waits, or since when it is given up, in seconds."""

    at: Any
    age_s: int


@dataclass
class UndecidedHalves:
    """Answer of the brokers: at most `COUNT_MAX` half messages, the oldest first; or the error of the request.

    Half messages that ``expired`` were not decided in time; they are not delivered until they are resumed.
    """

    group: str
    halves: list[UndecidedHalf] = field(default_factory=list)
    more: bool = False
    expired: list[UndecidedHalf] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""


def pending(configuration: ProjectConfiguration) -> UndecidedHalves:
    """Return the half messages of the project's group. Raises nothing: an error is in the answer's ``error``."""
    result = UndecidedHalves(configuration.group)
    if not configuration.nameserver:
        result.error = "the events of this project are carried in memory: there is no broker to ask"
        return result
    try:
        with Admin(nameserver=configuration.nameserver, **signing(configuration.settings)) as admin:
            halves = admin.pending_transactions(group=configuration.group, count_max=COUNT_MAX + 1)
            lost = [
                half
                for half in admin.expired_transactions(count_max=COUNT_MAX)
                if half.group == configuration.group and not (half.resumed or half.committed)
            ]
    except HalfmoonError as exc:
        result.error = str(exc)
        return result
    now = time.time_ns() // 1_000_000
    result.more = len(halves) > COUNT_MAX
    result.notes = list(dict.fromkeys(f"{half.broker}: {sentence}" for half in halves for sentence in half.not_reported))
    result.expired = [UndecidedHalf(half, max(0, now - half.expired_ms) // 1000) for half in lost]
    result.halves = [UndecidedHalf(half, max(0, now - half.since_ms) // 1000) for half in halves[:COUNT_MAX]]
    return result
