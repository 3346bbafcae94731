"""Filters by properties: SQL92 expressions compiled once, tested a slice at a time. Reads no messages, only their properties.

Follows ConsumerFilterManager, ExpressionMessageFilter and ExpressionForRetryMessageFilter (RocketMQ 4.9.8).
Differs: filtering by SQL92 is on unless it is switched off; an expression that does not parse is refused with 23 for every
consumer, while the original hands everything to a pull that brings one; codes 27 and 28 are never needed, for the filter of a
subscription is made of the subscription itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from halfmoon import sql92
from halfmoon.broker.consumers.clients import Clients
from halfmoon.broker.names import RETRY_PREFIX
from halfmoon.broker.pull.bloom import Matches, key_of
from halfmoon.broker.settings import BrokerSettings
from halfmoon.errors import BrokerError, SubscriptionParseFailed, SystemBusy, UsageError
from halfmoon.hot import BulkFilter
from halfmoon.instant import LONG_AGO
from halfmoon.logs import RateLimitedLog
from halfmoon.model import Subscription, java_hash, tags_of
from halfmoon.wire.bodies.clients import CLASS
from halfmoon.wire.properties import value_of

EXPRESSION_LENGTH_MAX = 32 * 1024
"""Characters of a filter. Thousands of tags fit; a megabyte would stop all others while it is read."""

STEPS_OF_TURN = 20_000
"""Budget of all tests in one turn of the loop, in steps of 0.1 to 0.2 microseconds: four milliseconds at most, and as much again in
the tick beside it, so that other connections wait far less than twenty."""

_STEPS_OF_CALL = 20
"""Steps for giving records to a bulk filter, besides the steps that it counts itself."""
_STEPS_OF_LOOKUP = 5
"""Steps for asking the filter of matches about a message: 0.9 us."""
_WEIGHT_OF_TABLE, _WEIGHT_OF_SCAN = 20, 2
"""Steps for each 100 bytes of properties that are read into a table, or of a value that is searched or read as a floating-point
number."""
_WEIGHT_OF_RETRY = 4
"""The same, to find the topic from which a message came."""
_UNSURE = BulkFilter(None)
"""A bulk filter that gives out the properties of all messages."""

_COMPILED_MAX, _COMPILED_CHARACTERS_MAX = 1_000, 1_000_000
_STEPS_OF_CHARACTER = 20
"""Cost of parsing an expression, refused or not: up to four microseconds a character."""
CHARACTERS_CHECKED_MAX = 5_000
"""Characters of new expressions after which a turn checks no more for consumers that start: 20 ms."""

NO_CLASS_FILTERS = "class filters are not supported: subscribe by tags or by SQL92"
NOT_SUPPORTED = "The broker does not support consumer to filter message by SQL92"


class Budget:
    """The steps that property filters may still take in this turn."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = STEPS_OF_TURN


def bytes_weight(compiled: sql92.Filter) -> int:
    """Return what testing a message costs beside its fixed steps, in steps for each 100 bytes of its properties."""
    return _WEIGHT_OF_TABLE + compiled.scans * _WEIGHT_OF_SCAN


class SqlTest:
    """One expression as a pull's test. See `halfmoon.store.queues.matching.PropertyTest`."""

    __slots__ = ("_budget", "_filter", "_key", "_matches", "_weight")

    def __init__(self, compiled: sql92.Filter, budget: Budget, matches: Matches | None = None) -> None:
        self._filter, self._budget, self._matches = compiled, budget, matches
        self._weight = bytes_weight(compiled)
        self._key = b"" if matches is None else key_of(compiled.expression)

    def possible(self, topic: str, queue_id: int, offset: int, count: int) -> list[int] | None:
        """Return the indexes of the messages from an offset on that may match; None: any may."""
        if self._matches is None:
            return None
        of_queue = self._matches.of(topic, queue_id)
        known = min(of_queue.known(offset, count, self._key), self._budget.left // _STEPS_OF_LOOKUP)
        if known <= 0:
            return None
        self._budget.left -= known * _STEPS_OF_LOOKUP
        return of_queue.possible(offset, known, count, self._key)

    def note(self, topic: str, queue_id: int, offset: int, looked: int, indexes: list[int]) -> None:
        """Remember which of the messages from an offset on matched, of those that were looked at."""
        if self._matches is not None:
            self._matches.of(topic, queue_id).note(offset, looked, self._key, indexes)

    def select(self, area: memoryview, base: int, entries: bytes, at_most: int) -> tuple[list[int], int, bool]:
        """Return the indexes of entries whose records match, how many were looked at, and whether the turn's budget is used up."""
        left, steps, weight = self._budget.left, self._filter.steps, self._weight
        matching, looked, spent = self._filter.records(area, base, entries, left, steps, weight, at_most)
        self._budget.left -= spent + _STEPS_OF_CALL
        return matching, looked, self._budget.left <= 0


class RetryTest:
    """The test of a retry topic: each message is tested with the group's filter of its first topic.

    A message of a topic for which the group has no expression passes. Used when ``filterSupportRetry`` is on.
    """

    __slots__ = ("_budget", "_filters", "_steps", "_weight")

    def __init__(self, filters: Mapping[bytes, sql92.Filter], budget: Budget) -> None:
        self._filters, self._budget = filters, budget
        self._steps = max(compiled.steps for compiled in filters.values())
        self._weight = _WEIGHT_OF_RETRY + max(bytes_weight(compiled) for compiled in filters.values())

    def possible(self, topic: str, queue_id: int, offset: int, count: int) -> None:
        """Return None: any message may match."""

    def note(self, topic: str, queue_id: int, offset: int, looked: int, indexes: list[int]) -> None:
        """Remember nothing: the test depends on the group."""

    def select(self, area: memoryview, base: int, entries: bytes, at_most: int) -> tuple[list[int], int, bool]:
        """Return the indexes of entries whose records match, how many were looked at, and whether the turn's budget is used up."""
        _, _, blocks, looked, spent = _UNSURE.records(area, base, entries, self._budget.left, self._steps, self._weight, at_most)
        self._budget.left -= spent + _STEPS_OF_CALL
        return [index for index, block in enumerate(blocks) if self._passes(block)], looked, self._budget.left <= 0

    def _passes(self, block: bytes) -> bool:
        compiled = self._filters.get(value_of(block, b"RETRY_TOPIC") or b"")
        return compiled is None or compiled.matches(block)


Test = SqlTest | RetryTest
Wanted = frozenset[int] | Test | None
"""Selection of messages by a consumer: hashes of tags, a test of properties, or (None) all."""


class Filters:
    """Turns subscriptions into what the store can select by."""

    steps_of_turn = STEPS_OF_TURN

    def __init__(self, settings: BrokerSettings, clients: Clients) -> None:
        self._settings, self._clients = settings, clients
        self._compiled: dict[str, sql92.Filter] = {}
        self._characters = 0
        self.log = RateLimitedLog(logging.getLogger("halfmoon.broker"), LONG_AGO)
        self.budget = Budget()
        self.matches = Matches() if settings.filter_bitmap else None

    def turn(self) -> None:
        """Begin a turn of the loop, with a new budget."""
        self.budget.left = self.steps_of_turn

    def of_expression(self, topic: str, expression: str | None, expression_type: str | None) -> Wanted:
        """Return what the expression of a pull selects.

        Raises:
            SubscriptionParseFailed: it does not parse, is too long or of an unknown kind (23).
            BrokerError: it is SQL92 and that is switched off (1).
        """
        if len(expression or "") > EXPRESSION_LENGTH_MAX:
            raise SubscriptionParseFailed(f"the consumer's subscription is longer than {EXPRESSION_LENGTH_MAX} characters")
        if expression_type == "SQL92":
            return SqlTest(self.compiled(expression or ""), self.budget, self.matches)
        if expression_type == CLASS:
            raise BrokerError(NO_CLASS_FILTERS)
        if expression_type not in (None, "", "TAG"):
            raise SubscriptionParseFailed(f"no filter is of type {expression_type[:40]!r}: give TAG or SQL92")
        try:
            return None if not expression or expression == "*" else frozenset(map(java_hash, tags_of(expression)))
        except UsageError as exc:
            raise SubscriptionParseFailed("parse the consumer's subscription failed") from exc  # as RocketMQ's, to the letter

    def of_subscription(self, known: Subscription) -> Wanted:
        """Return what a subscription from heartbeats selects. Raises as `of_expression`."""
        if known.expression_type == "TAG":
            return known.codes or None
        return self.of_expression(known.topic, known.expression, known.expression_type)

    def check(self, known: Subscription) -> None:
        """Check that a subscription can be accepted. Raises as `of_expression`, and SystemBusy when this turn parsed too much."""
        if self.budget.left < -CHARACTERS_CHECKED_MAX * _STEPS_OF_CHARACTER:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: too many expressions are to be parsed")
        self.of_subscription(known)

    def of_retries(self, group: str, topic: str) -> RetryTest | None:
        """Return the test for the retry topic of a group; None when its messages come unfiltered, as they do by default."""
        info = self._clients.group(group)
        if not self._settings.filter_support_retry or topic != RETRY_PREFIX + group or info is None:
            return None
        filters = {}
        for name, known in info.subscriptions.items():
            if known.expression_type == "SQL92":
                try:
                    filters[name.encode()] = self.compiled(known.expression)
                except BrokerError:
                    continue  # its pulls are refused; its retries are not filtered, so none is lost
        return RetryTest(filters, self.budget) if filters else None

    def forget(self, topic: str) -> None:
        """Forget a topic that was deleted."""
        if self.matches is not None:
            self.matches.forget(topic)

    def compiled(self, expression: str) -> sql92.Filter:
        """Return an expression made ready. Raises as `of_expression`."""
        if not self._settings.property_filter:
            raise BrokerError(NOT_SUPPORTED)
        compiled = self._compiled.get(expression)
        if compiled is None:
            self.budget.left -= len(expression) * _STEPS_OF_CHARACTER
            try:
                compiled = sql92.compile(expression)
            except UsageError as exc:
                raise SubscriptionParseFailed(str(exc)) from exc
            if len(self._compiled) >= _COMPILED_MAX or self._characters + len(expression) > _COMPILED_CHARACTERS_MAX:
                self._compiled.clear()
                self._characters = 0
            if constants := compiled.constants():
                self.log.warning("filter %r, as consumers asked for it: %s", expression[:200], "; ".join(constants))
            self._compiled[expression] = compiled
            self._characters += len(expression)
        return compiled
