"""What a broker remembers of each message, in memory: its state and how often its publisher was asked. Pure; told the time.

The states and what leads from one to another stand in `NEXT`; a pair that is not there leaves the state as it is.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

import msgspec

from halfmoon.model import Message, SendResult, StoredMessage

KEEP_MS = 72 * 3_600_000
"""Age at which an undecided message expires, whoever was asked. Follows fileReservedTime (RocketMQ 4.9.8)."""


class State(Enum):
    """What became of a message."""

    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    EXPIRED = "expired"


class Decision(Enum):
    """What a broker is told, or does, about a message."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    EXPIRE = "expire"
    RESUME = "resume"


class Verdict(Enum):
    """How a decision was taken."""

    TAKEN = "taken"
    REPEATED = "repeated"
    CONTRADICTED = "contradicted"


def own_copy(message: StoredMessage) -> StoredMessage:
    """Return a message for one receiver: what that one does to it, nobody else sees."""
    return replace(message, properties=dict(message.properties))


NEXT = {
    (State.UNKNOWN, Decision.COMMIT): State.COMMITTED,
    (State.UNKNOWN, Decision.ROLLBACK): State.ROLLED_BACK,
    (State.UNKNOWN, Decision.EXPIRE): State.EXPIRED,
    (State.EXPIRED, Decision.RESUME): State.UNKNOWN,
    (State.EXPIRED, Decision.COMMIT): State.COMMITTED,
    (State.EXPIRED, Decision.ROLLBACK): State.ROLLED_BACK,
}

_SAME = {
    (State.COMMITTED, Decision.COMMIT),
    (State.ROLLED_BACK, Decision.ROLLBACK),
    (State.EXPIRED, Decision.EXPIRE),
}
"""Decisions that say again what is so."""


class Record(msgspec.Struct):
    """A message that was stored.

    ``transactional``: it was stored as a half message. ``checks`` counts those that were sent since it was stored or resumed,
    ``counted`` those of them since a publisher last answered that the transaction is open, but for those answered NOT_MINE.
    ``sender`` and ``asked`` name the members of its group that sent it and that was asked last; ``open``: that one answered OPEN.
    """

    index: int
    group: str
    message: Message
    stored: StoredMessage
    result: SendResult
    transactional: bool
    state: State
    stored_ms: int
    next_check_ms: int = 0
    checks: int = 0
    counted: int = 0
    repeats: int = 0
    sender: str = ""
    asked: str = ""
    open: bool = False

    @property
    def id(self) -> str:
        """The event's id."""
        return self.stored.msg_id

    @property
    def topic(self) -> str:
        """The topic."""
        return self.stored.topic

    @property
    def code(self) -> str:
        """The event code."""
        return self.stored.tag or ""

    def __repr__(self) -> str:
        return f"<{self.state.value} {self.topic}/{self.code} {self.id} of {self.group}, {self.checks} checks>"


def decide(record: Record, decision: Decision) -> Verdict:
    """Take a decision about a record, or refuse it."""
    new = NEXT.get((record.state, decision))
    if new is None:
        return Verdict.REPEATED if (record.state, decision) in _SAME else Verdict.CONTRADICTED
    record.state = new
    if decision is Decision.RESUME:
        record.checks = record.counted = 0
    return Verdict.TAKEN
