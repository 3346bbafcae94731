"""Answers brokers' checks of half messages: by the token row, and by a function of the user's. Publishes nothing.

A broker asks any live member of the group. Its message says whether a token row was written with it: only then does a missing row
prove anything. A function may be asked while the transaction is open, and see nothing of it yet. So where there is a token row its
rollback counts only once the tombstone is in, which the open transaction's own row keeps out.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from halfmoon.errors import UsageError
from halfmoon.events.checks import tokens
from halfmoon.events.databases.database import Provider
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.encoding.envelope import event_of, event_without_payload
from halfmoon.events.event import Event, check_code, check_name
from halfmoon.events.publishing.delivery_modes import TOKEN, TOKEN_PROPERTY
from halfmoon.events.tables import TableMissing
from halfmoon.events.tracing import span, step
from halfmoon.logs import log_failure
from halfmoon.model import LocalTransactionState, StoredMessage

CHECKS_MAX = 10_000
"""Functions of one publisher; more is a mistake, such as decorating in a loop."""

OTHERS_MAX = 1_000
"""Databases of which a publisher says that they are not its own, each once."""

ANY = "*"

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
NOT_MINE, OPEN = LocalTransactionState.NOT_MINE, LocalTransactionState.OPEN

Check = Callable[..., Any]

log = logging.getLogger("halfmoon.events")


class CheckContext:
    """Context of a check, beside the event. ``message`` is the half message, ``checks`` counts how often the broker has asked."""

    def __init__(self, message: StoredMessage, checks: int) -> None:
        self.message = message
        self.checks = checks
        self.rollback_only = False
        self.reason = ""

    def set_rollback_only(self, reason: str = "") -> None:
        """Have the event rolled back: its transaction did not commit, and never will. Raise instead when you cannot tell.

        With a token row it is enough that it did not commit yet: while it is open, and when it commits, this has no effect.
        """
        self.rollback_only = True
        self.reason = reason or self.reason

    def set_context_desc(self, text: str) -> None:
        """Say why: the same as the reason of `set_rollback_only`."""
        self.reason = text


class Checks:
    """The checks of one publisher. Declare before messages flow; asked by many threads after that."""

    def __init__(self, codecs: Codecs, provider: Provider | None = None) -> None:
        """Make the checks of a publisher. ``provider``: where token rows lie; None for a publisher without them."""
        self._codecs = codecs
        self.provider = provider
        self._functions: dict[tuple[str, str], Check] = {}
        self._table_is_missing = False
        self._others: set[str] = set()

    def add(self, topic: str, code: str, function: Check) -> None:
        """Have ``function(event, context)`` answer for a topic and code; ``*`` stands for any.

        Raises UsageError for what cannot be called so, and for a second one.
        """
        if topic != ANY:
            check_name("topic", topic)
        if code != ANY:
            check_code(code)
        if not callable(function):
            raise UsageError(f"the check of {topic}/{code} must be a function of event and context, not {function!r:.60}")
        with suppress(ValueError):  # a function of C without a signature
            signature = inspect.signature(function)
            try:
                signature.bind(None, None)
            except TypeError:
                wanted = "must take the event and its context"
                raise UsageError(f"the check of {topic}/{code} {wanted}, and {function!r:.60} has {signature}") from None
        if (topic, code) in self._functions:
            raise UsageError(f"two checks of {topic}/{code}: {self._functions[topic, code]!r:.80} and {function!r:.80}; keep one")
        if len(self._functions) >= CHECKS_MAX:
            raise UsageError(f"more than {CHECKS_MAX} checks in one publisher")
        self._functions[topic, code] = function

    def share(self, others: Checks) -> None:
        """Answer by the functions of others from now on, also by those that are declared later."""
        self._functions = others._functions

    def function(self, topic: str, code: str) -> Check | None:
        """Return the function for a topic and code: the most exact one; a topic's wins over a code's."""
        if not self._functions:
            return None
        places = (topic, code), (topic, ANY), (ANY, code), (ANY, ANY)
        return next((function for place in places if (function := self._functions.get(place)) is not None), None)

    # ------------------------------------------------------------ a broker asks

    def answer(self, stored: StoredMessage) -> LocalTransactionState:
        """Return what became of the local transaction of a half message.

        OPEN, also where a function or the database raises: nobody can tell now, the broker asks again for as long as it keeps what
        is undecided. NOT_MINE: this publisher has no check, or another database, and the broker asks another.
        """
        event, checks = event_without_payload(stored), _count(stored)
        with span("check", event, group=event.group, carrier=stored.properties):
            try:
                state, reason = self._answer(stored, event, checks)
            except tokens.AnotherDatabase as exc:
                state, reason = NOT_MINE, "another database"
                self._say_once(stored, exc)
            except TableMissing as exc:
                step("checked", event, checks=checks, decision="open (no table)")
                if not self._table_is_missing:
                    self._table_is_missing = True
                    log.warning("checks stay open, the broker asks again: %s", exc)
                return OPEN
            except Exception as exc:
                step("checked", event, checks=checks, decision="open", error=exc, level=logging.INFO)
                facts = {"group": event.group, "topic": event.topic, "message": event.id, "tag": event.code, "try": checks or None}
                log_failure(log, "check failed", exc, facts, "the broker asks again")
                return OPEN
        level = logging.INFO if state in (COMMIT, ROLLBACK, NOT_MINE) else logging.WARNING
        step("checked", event, checks=checks, decision=state.name.lower() + (f" ({reason})" if reason else ""), level=level)
        return state

    def _say_once(self, stored: StoredMessage, why: tokens.AnotherDatabase) -> None:
        """Log that an event of a database is not this publisher's to decide; once for each."""
        database = f"{stored.properties.get(tokens.DATABASE_PROPERTY)} {stored.properties.get(tokens.SCHEMA_PROPERTY)}"
        if database not in self._others and len(self._others) < OTHERS_MAX:
            self._others.add(database)
            log.warning(
                "a half message is not this publisher's to decide, the broker asks others of its group; do all of them use one "
                "database? said once for each: reason=%s",
                why,
            )

    def _answer(self, stored: StoredMessage, event: Event, checks: int) -> tuple[LocalTransactionState, str]:
        provider = self.provider if stored.properties.get(TOKEN_PROPERTY) == TOKEN else None
        home = tokens.Home.of(stored.properties)
        function = self.function(event.topic, event.code)
        if function is None:
            return (NOT_MINE, "no check here") if provider is None else (_by_token(provider, event, home), "token row")
        if provider is not None:
            tokens.check_home(provider, home)
        context = CheckContext(stored, checks)
        result = function(event_of(stored, self._codecs), context)
        if inspect.iscoroutine(result):
            asyncio.run(result)
        if not context.rollback_only:
            return COMMIT, context.reason
        if provider is None:
            return ROLLBACK, context.reason
        state = _by_token(provider, event, home)
        return state, context.reason if state is ROLLBACK else "the check saw no commit; so says the token row"


def _by_token(provider: Provider, event: Event, home: tokens.Home) -> LocalTransactionState:
    return tokens.answer(provider, event.id, event.published_ms, time.time_ns() // 1_000_000, home)


def _count(stored: StoredMessage) -> int:
    """How often the broker has asked, this time included; 0 where it does not say."""
    text = stored.properties.get("TRANSACTION_CHECK_TIMES", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
