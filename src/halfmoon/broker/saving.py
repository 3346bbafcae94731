"""Saving of changed tables before the answer, so that a confirmed change survives a kill.

Tables that a handler changed are observed while it runs. `saves` declares those that it may change, so that it is refused while
one of them cannot be saved, or not copied where it must be; `saved_later` says why a handler answers at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from halfmoon.broker.request import Handler, Reply, Request
from halfmoon.broker.send.pending_replies import PendingReplies, refused
from halfmoon.broker.tables import Tables
from halfmoon.errors import ServiceNotAvailable
from halfmoon.instant import Instant

M = TypeVar("M", bound=Callable[..., Any])


def saves(*paths: str, announced: bool = False) -> Callable[[M], M]:
    """Declare the tables that a handler may change, so that it is refused while one of them cannot be saved.

    ``announced``: name servers learn of the change before the answer, so that the caller can use the topic at once.
    """

    def declare(handler: M) -> M:
        handler.saves, handler.announced = paths, announced  # type: ignore[attr-defined]
        return handler

    return declare


def saved_later(why: str) -> Callable[[M], M]:
    """Declare that a handler answers before its changes are saved. ``why`` that is no loss after a kill."""

    def declare(handler: M) -> M:
        handler.saved_later = why  # type: ignore[attr-defined]
        return handler

    return declare


def after_save(handler: Handler, tables: Tables, replies: PendingReplies, announce: Callable[[Request, Reply], None]) -> Handler:
    """Return a handler that replies once the tables that ``handler`` changed are saved; ``announce`` replies where it says so."""
    if hasattr(handler, "saved_later"):
        return handler
    paths = getattr(handler, "saves", ())
    answer = announce if getattr(handler, "announced", False) else replies.reply_now

    def handle(request: Request) -> Reply | None:
        tables.check(*paths)
        if paths:
            replies.check_copies()
        tables.changes.clear()
        reply = handler(request)
        changed = tables.changes.union(paths)  # the same may have been changed a moment ago, and not be saved yet
        if reply is None or not changed:
            return reply

        def saved(reason: str | None, now: Instant) -> None:
            if reason is None:
                replies.after_copies(lambda refusal, now: answer(request, reply if refusal is None else refused(refusal)))
            else:
                remark = f"service not available now: it is done, but may be undone by a restart: not saved: {reason}"
                replies.reply_now(request, refused(ServiceNotAvailable(remark)))

        tables.when_saved(changed, saved, request.now)
        return None

    return handle
