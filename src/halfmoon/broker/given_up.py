"""Half messages that were given up: kept in a topic of their own with the reason and the history of their checks, resumable.

A copy goes to ``TRANS_CHECK_MAX_TIME_TOPIC`` first, then an op record settles the half message: consumers never see it. Whoever
resumes it makes a new half message of the copy, and its producers are asked again.

Follows DefaultTransactionalMessageCheckListener.resolveDiscardMsg and AdminBrokerProcessor.resumeCheckHalfMessage (RocketMQ 4.9.8).
Differs: nothing is passed over before the copy is stored; the copy says why and whom was asked; a copy is resumed once; only a
record of this topic can be resumed; a compressed message can be read after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from halfmoon.broker.decisions import Answer, Decided, Decisions
from halfmoon.broker.half import (
    CHECK_TIMES,
    OURS,
    PRODUCER_GROUP,
    REAL_QUEUE,
    REAL_TOPIC,
    Halves,
    checks_written,
    with_pairs,
    without,
)
from halfmoon.broker.names import GIVEN_UP_TOPIC, HALF_TOPIC
from halfmoon.broker.request import Reply, Request
from halfmoon.broker.send import Sends
from halfmoon.broker.topics import Topics
from halfmoon.errors import BrokerError, CorruptRecord, StoreNotWritable, UsageError
from halfmoon.hot import tag_hash
from halfmoon.store.parts import Parts, parts_of
from halfmoon.store.store import Draft, Store
from halfmoon.store.transactions import Check, Half, State, TransactionIndex
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.headers.transaction import ResumeCheckHalfMessage
from halfmoon.wire.ids import parse_offset_msg_id

log = logging.getLogger("halfmoon.broker.transactions")

REASON, HISTORY = "TRANSACTION_GIVEN_UP_REASON", "TRANSACTION_CHECK_HISTORY"
"""Properties of a copy, where there is room: why, and each check as ``seconds:answer:producer`` joined by blanks, oldest first."""

_NOT_RESUMED = frozenset(name.encode() for name in OURS - {"CLUSTER", REAL_TOPIC, REAL_QUEUE})
_COPIED_MAX = 10_000


class GivenUp:
    """The service that gives up and resumes."""

    def __init__(
        self, store: Store, index: TransactionIndex, topics: Topics, sends: Sends, halves: Halves, decisions: Decisions,
        warn: Callable[..., None],
    ) -> None:  # fmt: skip
        self._store, self._index, self._topics, self._sends = store, index, topics, sends
        self._halves, self._decisions, self._warn = halves, decisions, warn
        self._copied: set[int] = set()
        """Half messages whose copy is stored and that could not be settled yet."""
        self.given_up = self.resumed = 0

    def give_up(self, half: Half, parts: Parts | None, reason: str, now: int) -> bool:
        """Settle a half message as never visible; return False when the store takes nothing now, so that it stays pending."""
        sent, history = self._index.checks(half.index)
        if parts is not None:
            times = {CHECK_TIMES: str(max(sent, checks_written(parts)))}
            properties = with_pairs(parts.properties, {**times, REASON: reason, HISTORY: history_text(history)})
            try:
                self._copy_once(half.index, _draft(parts, properties), now)
            except (BrokerError, StoreNotWritable) as exc:
                self._warn("half message %d cannot be given up now: %s", half.index, exc)
                return False
        group = "" if parts is None else wire_properties.decode(parts.properties).get(PRODUCER_GROUP, "")
        self._decisions.decide([Decided(half.index)], now)
        settled = self._index.half(half.index)
        if settled is not None and settled.state == State.PREPARED:  # its copy is there, and it is settled in another round
            return False
        self._copied.discard(half.index)
        self._warn("half message %d (group %s, %d checks sent) is given up: %s", half.index, group, sent, reason)
        self.given_up += 1
        return True

    def _copy_once(self, index: int, draft: Draft, now: int) -> None:
        """Store the copy, unless it was stored before and only the op record failed. Raises BrokerError or StoreNotWritable."""
        if index in self._copied:
            return
        self._index.make_room(0, 1)
        self._topics.ensure(GIVEN_UP_TOPIC, 1, now)
        self._sends.append(GIVEN_UP_TOPIC, 0, [draft], now)
        if len(self._copied) < _COPIED_MAX:
            self._copied.add(index)

    def resume(self, request: Request) -> Reply:
        """Check a half message again that was given up (323); ``msgId`` is the offset message id of its copy."""
        header = request.header(ResumeCheckHalfMessage)
        try:
            place = parse_offset_msg_id(header.msg_id or "").physical_offset
        except UsageError as exc:
            raise BrokerError(f"resume: {exc}") from exc
        parts = self._copy(place)
        found = wire_properties.decode(parts.properties)
        unique = found.get("UNIQ_KEY", "")
        if unique:
            self._check_resumable(unique, place, request.now)
        kept = with_pairs(without(parts.properties, _NOT_RESUMED), {CHECK_TIMES: "0"})
        self._halves.append([_draft(parts, kept)], [found.get(PRODUCER_GROUP, "")], request.now)
        self.resumed += 1
        log.warning("message %s is resumed by %s: its producers are asked again", unique, request.peer.remote)
        return Reply()

    def _copy(self, place: int) -> Parts:
        record = self._store.record(place) if place >= 0 else None
        try:
            parts = None if record is None else parts_of(record)
        except CorruptRecord as exc:
            raise BrokerError(f"resume: the message is damaged: {exc}") from exc
        if parts is None or parts.topic != GIVEN_UP_TOPIC:
            raise BrokerError("resume: there is no message of that id that was given up")
        return parts

    def _check_resumable(self, unique: str, place: int, now: int) -> None:
        """Raise BrokerError when the message was resumed, or committed: a full disk may come between its copy and its op record."""
        for record in self._store.query(HALF_TOPIC, unique, 32, 0, now).records:
            stored = parts_of(record)
            half = self._index.half(stored.queue_offset)
            if stored.physical_offset > place:
                raise BrokerError(f"message {unique} was resumed already")
            if half is not None and half.physical_offset == stored.physical_offset and half.state == State.COMMITTED:
                raise BrokerError(f"message {unique} was committed")


def _draft(parts: Parts, properties: bytes) -> Draft:
    tag = wire_properties.value_of(properties, b"TAGS")
    code = tag_hash(tag) if tag else 0
    return parts.body, properties, parts.flag, parts.sys_flag, parts.born_ms, parts.born_host, parts.reconsume_times, 0, code


def history_text(history: Sequence[Check]) -> str:
    """Return checks as a property keeps them."""
    return " ".join(f"{check.sent_s}:{Answer(check.answer).name}:{check.producer:06x}" for check in history)
