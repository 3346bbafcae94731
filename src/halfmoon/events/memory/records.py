"""What a broker remembers of each message, in memory: its state and how often its publisher was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Protocol

import msgspec

from halfmoon.model import LocalTransactionState, SendResult, StoredMessage

KEEP_MS = 72 * 3_600_000
"""Age at which an undecided message expires, whoever was asked. Follows fileReservedTime (RocketMQ 4.9.8)."""


class State(Enum):
    """What became of a message. A decision names the state that it leads to; of `FINAL` ones none leads away."""

    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    EXPIRED = "expired"


FINAL = State.COMMITTED, State.ROLLED_BACK


def own_copy(message: StoredMessage) -> StoredMessage:
    """Return a message for one receiver: what that one does to it, nobody else sees."""
    return replace(message, properties=dict(message.properties))


class Member(Protocol):
    """A member of a publisher group, which a bus calls ``client``. ``settle`` has it decide what it can."""

    group: str
    client: str
    dead: bool
    settle: Callable[[], None]

    @property
    def answers(self) -> bool:
        """Whether it can be asked."""

    def ask(self, record: Record) -> LocalTransactionState:
        """Answer a check. Raises what the check raises."""


class Record(msgspec.Struct):
    """A message that was stored.

    ``checks`` counts those that were sent since it was stored or resumed, ``counted`` those of them since a publisher last
    answered that the transaction is open, but for those answered NOT_MINE. ``sender`` and ``asked`` are the members of its group
    that sent it and that was asked last; ``open``: that one answered OPEN.
    """

    group: str
    stored: StoredMessage
    result: SendResult
    state: State
    stored_ms: int
    next_check_ms: int = 0
    checks: int = 0
    counted: int = 0
    repeats: int = 0
    sender: Member | None = None
    asked: Member | None = None
    open: bool = False
    cleared: bool = False
    """Whether the bus has forgotten it."""

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
