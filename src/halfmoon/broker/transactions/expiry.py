"""Expired half messages: kept in a topic of their own with the reason and the history of their checks, and resumable.

A copy goes to ``TRANS_CHECK_MAX_TIME_TOPIC`` first, then an op record settles the half message: consumers never see it. The copy
names the half record's place, so that after a crash between the two no second one is made. Whoever resumes it makes a new half
message of the copy, and its producers are asked again.

Follows DefaultTransactionalMessageCheckListener.resolveDiscardMsg and AdminBrokerProcessor.resumeCheckHalfMessage (RocketMQ 4.9.8).
Differs: nothing is passed over before the copy is stored; the copy says why and who was asked, and has the half record's place as
its prepared transaction offset; a copy is resumed once; only a record of this topic can be resumed; a compressed message can be
read after it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from halfmoon.broker.context import Context
from halfmoon.broker.lookup import FOR_EVER_MS, message_of, places_of
from halfmoon.broker.names import EXPIRED_TOPIC, HALF_TOPIC
from halfmoon.broker.request import Reply, Request
from halfmoon.broker.send.sends import Sends
from halfmoon.broker.transactions.answers import Answer
from halfmoon.broker.transactions.decisions import Decisions
from halfmoon.broker.transactions.half import (
    CHECK_TIMES,
    OURS,
    PRODUCER_GROUP,
    REAL_QUEUE,
    REAL_TOPIC,
    HalfMessages,
    checks_written,
    real_queue,
)
from halfmoon.broker.transactions.late_decisions import HISTORY, REASON, LateDecisions, copy_from
from halfmoon.errors import BrokerError, CorruptRecord, StoreNotWritable, UsageError
from halfmoon.hot import Draft, Messages, Parts, tag_hash
from halfmoon.model import StoredMessage
from halfmoon.store.records import whole_record
from halfmoon.store.transactions.index import Check, Half, State, TransactionIndex
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.headers.transaction import ResumeCheckHalfMessage
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.properties import with_pairs, without

log = logging.getLogger("halfmoon.broker.transactions")

_NOT_RESUMED = frozenset(name.encode() for name in OURS - {"CLUSTER", "MSG_REGION", "TRACE_ON", REAL_TOPIC, REAL_QUEUE})
_COPIED_MAX = 1000
"""Copies without an op record: while there are so many, no other is made. A start looks at so many of the newest, some 40 ms."""


class Expiry:
    """The service that expires half messages and resumes them."""

    copied_max = _COPIED_MAX

    def __init__(
        self, context: Context, index: TransactionIndex, sends: Sends, half_messages: HalfMessages, decisions: Decisions,
        late_decisions: LateDecisions, warn: Callable[..., None],
    ) -> None:  # fmt: skip
        self._store, self._topics, self._pending_replies = context.store, context.topics, context.pending_replies
        self._index, self._sends, self._half_messages, self._decisions = index, sends, half_messages, decisions
        self._late_decisions, self._warn = late_decisions, warn
        self._copied: set[int] | None = None
        """Half messages whose copy is stored and that could not be settled yet; None: nobody asked for them since the start."""
        self._resuming: deque[tuple[int, str]] = deque()
        """Copies that were resumed and whose new half message is not durable, and so found by nobody: end of the log, and who."""
        self.expired = self.resumed = 0

    def expire(self, half: Half, parts: Parts | None, reason: str, now: int) -> bool:
        """Settle a half message as never visible; return False when the store takes nothing now, so that it stays pending."""
        sent, _, history = self._index.checks(half.index)
        if parts is not None:
            times = {CHECK_TIMES: str(max(sent, checks_written(parts)))}
            properties = with_pairs(parts.properties, {**times, REASON: reason, HISTORY: history_text(history)})
            try:
                self._copy_once(half, _draft(parts, properties, half.physical_offset), now)
            except (BrokerError, StoreNotWritable) as exc:
                self._warn("half message %d cannot expire now: %s", half.index, exc)
                return False
        group = "" if parts is None else wire_properties.decode(parts.properties).get(PRODUCER_GROUP, "")
        self._decisions.expire(half.index, now)
        settled = self._index.half(half.index)
        if settled is not None and settled.state == State.PREPARED:  # its copy is there, and it is settled in another round
            return False
        if self._copied is not None:
            self._copied.discard(half.index)
        self._warn("half message %d (group %s, %d checks sent) expired: %s", half.index, group, sent, reason)
        self.expired += 1
        return True

    def _copy_once(self, half: Half, draft: Draft, now: int) -> None:
        """Store the copy, unless it was stored before and only the op record is missing. Raises BrokerError or StoreNotWritable."""
        if self._copied is None:
            self._copied = self._copied_before()
        if half.index in self._copied:
            return
        if len(self._copied) >= self.copied_max:
            raise StoreNotWritable(f"{self.copied_max} others wait for their op records")
        self._late_decisions.check_room()
        self._index.make_room(0, 1)
        self._topics.ensure(EXPIRED_TOPIC, 1, now)
        [place] = self._sends.append(EXPIRED_TOPIC, 0, [draft], now).physical_offsets
        self._late_decisions.copied(half.physical_offset, place)
        self._copied.add(half.index)

    def _copied_before(self) -> set[int]:
        """Return the pending half messages of which the topic has a copy: a process ended before their op records.

        Only copies that name a pending half message are read with their bodies, so that a thousand copies do not hold up a turn.
        """
        store, lowest = self._store, self._index.half(self._index.lowest_pending())
        copied: set[int] = set()
        end, first = store.queue_max(EXPIRED_TOPIC, 0), store.queue_min(EXPIRED_TOPIC, 0)
        for offset in range(end - 1, max(first, end - self.copied_max) - 1, -1):
            pieces = store.read(EXPIRED_TOPIC, 0, offset, 1).pieces
            places = places_of(pieces[0]) if pieces else None
            if places is None:
                continue
            if lowest is not None and places[1] < lowest.physical_offset:
                break
            named = places_of(store.record(places[2])) if places[2] >= 0 else None
            half = None if named is None else self._index.half(named[0])
            if half is not None and half.state == State.PREPARED and half.physical_offset == places[2]:
                copy = message_of(pieces[0])
                if copy is not None and self._half_of(copy) is not None:
                    copied.add(half.index)
        return copied

    def _half_of(self, copy: StoredMessage) -> Half | None:
        """Return the half message that a copy names; None when it is gone or another one: Apache's copies name place 0."""
        place = copy.prepared_transaction_offset
        record = self._store.record(place) if place >= 0 else None
        stored = None if record is None else message_of(record)
        if stored is None or stored.body != copy.body or stored.properties.get("UNIQ_KEY") != copy.properties.get("UNIQ_KEY"):
            return None
        half = self._index.half(stored.queue_offset) if stored.topic == HALF_TOPIC else None
        return half if half is not None and half.physical_offset == place else None

    def resume(self, request: Request) -> None:
        """Check an expired half message again (323); ``msgId`` is the offset message id of its copy."""
        self._pending_replies.check_room()
        header = request.header(ResumeCheckHalfMessage)
        try:
            place = parse_offset_msg_id(header.msg_id or "").physical_offset
        except UsageError as exc:
            raise BrokerError(f"resume: {exc}") from exc
        parts = self._copy(place)
        pairs = wire_properties.decode(parts.properties)
        unique = pairs.get("UNIQ_KEY", "")
        self._check_not_resuming(unique or str(place))
        if unique:
            self._check_resumable(unique, place)
        self._late_decisions.check_room()
        kept = with_pairs(without(parts.properties, _NOT_RESUMED), {CHECK_TIMES: "0"})
        group, draft = pairs.get(PRODUCER_GROUP, ""), _draft(parts, kept, 0)
        if not group:
            raise BrokerError("resume: it was a delayed message, no half message: send it again")
        appended = self._half_messages.append((*real_queue(kept), group, Messages([draft])), request.now.date)
        index, resumed = appended.queue_offset, appended.physical_offsets[0]
        if (copy := message_of(self._store.record(place))) is not None:
            self._late_decisions.resumed(copy.prepared_transaction_offset, index, resumed)
        if self._store.holds_back:
            self._resuming.append((self._store.end_offset, unique or str(place)))
        self.resumed += 1
        log.warning("message %s is resumed by %s: its producers are asked again", unique, request.peer.remote)
        self._pending_replies.reply(request, Reply())

    def _copy(self, place: int) -> Parts:
        record = self._store.record(place) if place >= 0 else None
        try:
            parts = None if record is None else whole_record(record)
        except CorruptRecord as exc:
            raise BrokerError(f"resume: the message is damaged: {exc}") from exc
        if parts is None or parts.topic != EXPIRED_TOPIC:
            raise BrokerError("resume: there is no expired message of that id")
        return parts

    def _check_not_resuming(self, name: str) -> None:
        """Raise BrokerError when the message was resumed a moment ago. Those who wait for the device are few: see `Later`."""
        while self._resuming and self._resuming[0][0] <= self._store.kept_offset:
            self._resuming.popleft()
        if any(other == name for _, other in self._resuming):
            raise BrokerError(f"message {name} was resumed already")

    def _check_resumable(self, unique: str, place: int) -> None:
        """Raise BrokerError if the message was resumed or decided.

        A full disk may come between its copy and its op record, and its producer may come late.
        """
        copy = message_of(self._store.record(place))
        late = None if copy is None else self._late_decisions.committed(copy_from(copy))
        if late is not None:
            raise BrokerError(f"message {unique} was {'committed' if late else 'rolled back'}")
        for record in self._store.query(HALF_TOPIC, unique, 32, 0, FOR_EVER_MS).records:
            stored = whole_record(record)
            half = self._index.half(stored.queue_offset)
            if stored.physical_offset > place:
                raise BrokerError(f"message {unique} was resumed already")
            if half is not None and half.physical_offset == stored.physical_offset and half.state == State.COMMITTED:
                raise BrokerError(f"message {unique} was committed")


def _draft(parts: Parts, properties: bytes, prepared_offset: int) -> Draft:
    tag = wire_properties.value_of(properties, b"TAGS")
    code = tag_hash(tag) if tag else 0
    return (
        parts.body, properties, parts.flag, parts.sys_flag, parts.born_ms, parts.born_host, parts.reconsume_times, prepared_offset,
        code,
    )  # fmt: skip


def history_text(history: Sequence[Check]) -> str:
    """Return checks as a property keeps them."""
    return " ".join(f"{check.sent_s}:{Answer(check.answer).name}:{check.producer:06x}" for check in history)
