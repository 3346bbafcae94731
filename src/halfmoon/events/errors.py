"""Errors of events. Each text names the place and the remedy; the facts stand in attributes."""

from __future__ import annotations

from collections.abc import Sequence

from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.logs import listed


class NoChecker(UsageError):
    """A transactional event of a publisher that could not answer a broker's check; nothing was sent."""


class PayloadRefused(UsageError):
    """A payload or header that cannot travel: no codec, too long, a reserved name. Nothing was sent."""


class NameRefused(UsageError):
    """A group, topic or event code that is malformed or was not declared. Nothing was sent."""


class NoTransaction(UsageError):
    """No local transaction is active here, and one is needed."""


class TransactionEnded(UsageError):
    """The local transaction that was named has ended."""


class AmbiguousTransaction(UsageError):
    """Several local transactions are active here, and nothing says which one is meant."""


class PublishedBefore(UsageError):
    """The event was published in this transaction already, and belongs to it. Nothing was sent, and the transaction may go on."""


class TransactionDoomed(UsageError):
    """The transaction was rolled back instead of committed, because a block that had joined it failed."""


class DeclarationRefused(UsageError):
    """A declaration that cannot be read. ``place`` is a file and line, or a path inside the file; ``remedy`` says what to write."""

    def __init__(self, place: str, what: str, remedy: str) -> None:
        super().__init__(f"{place}: {what}; {remedy}")
        self.place, self.what, self.remedy = place, what, remedy


class PublishFailed(HalfmoonError):
    """An event could not be sent. ``event_id`` names it; ``attempts`` were made; ``__cause__`` is the last attempt's error.

    Of `publish_many`, ``event_ids`` names all that failed, and ``event_id`` the first of them.

    A broker may have stored it all the same when an answer was lost. Inside a transaction: let the error go on, so that the
    transaction rolls back; the broker's check then finds out. ``in_database``: the database refused its part of the event.
    """

    retry = True

    def __init__(self, event_id: str | Sequence[str], what: str, attempts: int, *, in_database: bool = False) -> None:
        ids = (event_id,) if isinstance(event_id, str) else tuple(event_id)
        named = f"event {ids[0]}" if len(ids) == 1 else f"{len(ids)} events ({listed(ids, 10)})"
        super().__init__(f"{named} not published after {attempts} attempt(s): {what}")
        self.event_id, self.event_ids, self.attempts, self.in_database = ids[0], ids, attempts, in_database
