"""Context of a consumer's function: where the event came from, and a way to say that it could not be processed."""

from __future__ import annotations

from typing import Any

from halfmoon.events.event import Event
from halfmoon.model import StoredMessage

REASON_LENGTH_MAX = 1_000
"""Characters of a reason that are kept here; brokers keep fewer."""


class ConsumerContext:
    """Context of one call of a consumer's function.

    ``event`` is what it was called with, ``message`` the message that carried it, ``group`` the consumer group, ``attempt`` how
    often this group was given the event, counted from 1. ``session`` is the transaction of ``dedup``: a Session, an AsyncSession,
    or what the provider gives; None without it.

    ::

        def send_mail(event, context):
            if not mail_server.accepts():
                context.set_rollback_only("the mail server rests")
    """

    __slots__ = ("_reason", "attempt", "event", "group", "message", "rollback_only", "session")

    def __init__(self, event: Event, message: StoredMessage, group: str, attempt: int, session: Any = None) -> None:
        self.event = event
        self.message = message
        self.group = group
        self.attempt = attempt
        self.session = session
        self.rollback_only = False
        self._reason = ""

    @property
    def reason(self) -> str:
        """Why it is to come again, as far as that was said."""
        return self._reason

    def set_rollback_only(self, reason: str = "") -> None:
        """Have the event delivered again later, though the function returns; what it did with ``session`` is undone."""
        self.rollback_only = True
        if reason:
            self.set_context_desc(reason)

    def set_context_desc(self, text: str) -> None:
        """Say why; counts with `set_rollback_only`, before or after it. Kept with the event, and shown to operators."""
        self._reason = str(text)[:REASON_LENGTH_MAX]

    def __repr__(self) -> str:
        return f"ConsumerContext({self.event}, group={self.group!r}, attempt={self.attempt})"
