"""Half messages of the publisher's group that wait for a decision, and those that expired: as the brokers tell.

For the admin page and the command.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

from halfmoon import Admin
from halfmoon.errors import HalfmoonError
from halfmoon.events.django.configuration import Configuration

COUNT_MAX = 200


class Half(NamedTuple):
    """One half message. ``age_s`` is how long it waits, ``checks_left`` how often it will be asked about."""

    event_id: str
    topic: str
    tag: str
    age_s: int
    checks_sent: int
    checks_left: int
    last_answer: str
    producers: int
    broker: str


class Expired(NamedTuple):
    """One half message that nobody decided in time; it is not delivered until it is resumed, by its id at the broker."""

    event_id: str
    topic: str
    tag: str
    since_s: int
    reason: str
    checks_sent: int
    resume_by: str


@dataclass
class Pending:
    """What the brokers said: at most `COUNT_MAX` half messages, the oldest first; or why they could not be asked."""

    group: str
    halves: list[Half] = field(default_factory=list)
    more: bool = False
    expired: list[Expired] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""


def pending(configuration: Configuration) -> Pending:
    """Return the half messages of the project's group. Raises nothing: what goes wrong is the answer's ``error``."""
    found = Pending(configuration.group)
    if not configuration.nameserver:
        found.error = "the events of this project are carried in memory: there is no broker to ask"
        return found
    try:
        with Admin(nameserver=configuration.nameserver) as admin:
            told = admin.pending_transactions(group=configuration.group, count_max=COUNT_MAX + 1)
            lost = [
                one
                for one in admin.expired_transactions(count_max=COUNT_MAX)
                if one.group == configuration.group and not (one.resumed or one.committed)
            ]
    except HalfmoonError as exc:
        found.error = str(exc)
        return found
    now = time.time_ns() // 1_000_000
    found.more = len(told) > COUNT_MAX
    found.notes = list(dict.fromkeys(f"{one.broker}: {sentence}" for one in told for sentence in one.not_told))
    found.expired = [
        Expired(
            *(one.msg_id, one.topic, one.tag, max(0, now - one.expired_ms) // 1000),
            *(one.reason or "not told", one.checks_sent, one.offset_msg_id),
        )
        for one in lost
    ]
    found.halves = [
        Half(
            *(one.msg_id, one.topic, one.tag, max(0, now - one.since_ms) // 1000, one.checks_sent, one.checks_left),
            *(one.last_answer.lower() or "not asked yet", one.producers, one.broker),
        )
        for one in told[:COUNT_MAX]
    ]
    return found
