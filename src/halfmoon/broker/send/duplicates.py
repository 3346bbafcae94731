"""Deduplication: a message that is sent again under the same id, because the first reply was lost, is stored once.

Only sends that are marked as repeated (``INNER_REPEAT``, see `halfmoon.model.Message.attempt`) come here, one at a time: no other
send pays for it. The key index, and the part of the log that it has not reached, tell whether the id is known: half messages by
UNIQ_KEY, producer group and topic, others by UNIQ_KEY and topic. So this works across restarts, as long as messages are kept.

Differs: the original stores a repeated send as another message. So does this broker if a message is delayed, comes from a consumer,
or is part of a batch.
"""

from __future__ import annotations

import logging

from msgspec import structs

from halfmoon.broker.context import Context
from halfmoon.broker.lookup import messages_with
from halfmoon.broker.names import DEAD_PREFIX, HALF_TOPIC, RETRY_PREFIX
from halfmoon.broker.request import Handler, Request
from halfmoon.broker.send.replies import StoredGroup
from halfmoon.broker.send.sends import SendHeaderOf, Sends, sender_of
from halfmoon.broker.transactions.half import PRODUCER_GROUP, REAL_QUEUE, REAL_TOPIC
from halfmoon.broker.transactions.late_decisions import LateDecisions
from halfmoon.errors import BrokerError, SystemBusy, settled_already
from halfmoon.hot import Messages
from halfmoon.instant import Instant
from halfmoon.model import REPEAT, UNIQ_KEY, StoredMessage
from halfmoon.store.transactions.index import State, TransactionIndex
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.properties import may_be_delayed, without

KNOWN_MAX = 10_000
"""New ids of repeated sends that are not durable yet. More repeated sends are refused with 2, and nothing of them is stored."""

_MARK = frozenset((REPEAT.encode(),))

log = logging.getLogger("halfmoon.broker")


class Duplicates:
    """Finds what became of the first attempt. With sync flush a repeated send waits until that is visible."""

    def __init__(self, context: Context, index: TransactionIndex, sends: Sends, late_decisions: LateDecisions) -> None:
        self._store, self._topics, self._pending_replies = context.store, context.topics, context.pending_replies
        self._index, self._sends, self._late_decisions = index, sends, late_decisions
        self._judged: Request | None = None
        self._stored: dict[tuple[str, str], int] = {}
        """Ids of repeated sends that were new and are not durable yet: the end of the log behind them."""
        self.merged = self.refused = 0

    def deduplicate(self, request: Request, header: SendHeaderOf, handle: Handler) -> SendHeaderOf | None:
        """Return a marked send as it is to be stored, without its mark.

        None: it is answered, or waits for the device until ``handle`` handles it again.

        Raises BrokerError 4 for a half message that was rolled back or expired, SystemBusy (2) when too many wait.
        """
        text = header.properties or ""
        unmarked = structs.replace(header, properties=without(text.encode(), _MARK).decode())
        properties = wire_properties.decode(text.encode())
        key, topic = properties.get(UNIQ_KEY, ""), header.topic
        if not key or header.reconsume_times or may_be_delayed(text) or topic.startswith((RETRY_PREFIX, DEAD_PREFIX)):
            return unmarked
        if self._waits(request, (topic, key), handle):
            return None
        group = properties.get(PRODUCER_GROUP, "") if properties.get("TRAN_MSG", "").lower() == "true" else None
        first = self._first_ordinary(topic, key) if group is None else self._first_half(topic, key, group)
        if first is not None:
            self._answer(request, *first)
            return None
        if self._store.holds_back:
            self._remember(topic, key)
        return unmarked

    # ------------------------------------------------------------ inside

    def _waits(self, request: Request, key: tuple[str, str], handle: Handler) -> bool:
        """Keep a repeated send until all before it is durable: only then the first attempt is visible."""
        store = self._store
        if not store.holds_back or store.kept_offset >= store.end_offset:
            return False
        # It waited once, and must not wait for what came meanwhile, unless that has its id.
        if request is self._judged and store.kept_offset >= self._stored.get(key, 0):
            return False
        size = len(request.command.body)
        self._pending_replies.check_room(size)

        def done(refusal: BrokerError | None, now: Instant) -> None:
            if refusal is None:
                self._handle_again(request, now, handle)
            else:
                self._sends.replies.refuse_one(request, refusal)

        self._pending_replies.after_flush(done, size)
        return True

    def _handle_again(self, request: Request, now: Instant, handle: Handler) -> None:
        """Handle a repeated send that has waited until the first attempt is visible."""
        request.now, self._judged = now, request
        try:
            handle(request)
        except Exception as exc:  # our own mistake: this send fails, those that waited with it are not affected
            log.exception("a repeated send of %s that waited failed", request.peer.remote)
            self._sends.replies.refuse_one(request, BrokerError(f"{type(exc).__name__}: {exc}"))
        finally:
            self._judged = None
        # The flush of this turn is over: nobody else would start a sync for what was just stored.
        self._store.flush(1, now.steady)

    def _remember(self, topic: str, key: str) -> None:
        """Remember the id of a repeated send that is new: until it is durable, the next one with this id cannot see it."""
        if len(self._stored) >= KNOWN_MAX:
            durable = self._store.kept_offset
            self._stored = {known: end for known, end in self._stored.items() if end > durable}
            if len(self._stored) >= KNOWN_MAX:
                raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: the disk does not keep up")
        self._stored[topic, key] = self._store.end_offset + 1  # it will be stored behind the present end

    def _first_ordinary(self, topic: str, key: str) -> tuple[StoredMessage, int] | None:
        messages = messages_with(self._store, topic, key)
        return (messages[-1], messages[-1].queue_id) if messages else None

    def _first_half(self, topic: str, key: str, group: str) -> tuple[StoredMessage, int] | None:
        for message in messages_with(self._store, HALF_TOPIC, key):
            properties = message.properties
            if properties.get(PRODUCER_GROUP) != group or properties.get(REAL_TOPIC) != topic:
                continue
            half = self._index.half(message.queue_offset)
            if half is None or half.physical_offset != message.physical_offset or half.state == State.NONE:
                continue
            if self._is_of_deleted(topic, message.physical_offset, half.state):
                continue
            if half.state == State.ROLLED_BACK:
                self._check_committed_late(topic, key, group, message.physical_offset)
            queue = properties.get(REAL_QUEUE, "")
            return message, int(queue) if queue.isdigit() and len(queue) < 10 else 0
        return None

    def _is_of_deleted(self, topic: str, place: int, state: int) -> bool:
        """Return whether a half message belongs to an earlier, deleted topic of this name, and will not reach the present one."""
        if state == State.PREPARED:
            return place < self._topics.accepts_from(topic)
        config = self._topics.get(topic)
        return config is not None and place < (config.birth_offset or 0)

    def _check_committed_late(self, topic: str, key: str, group: str, place: int) -> None:
        """Raise BrokerError 4 unless the half message at a place, which is rolled back, had expired and was committed late."""
        copy = self._late_decisions.copy_of(key, group, place)
        committed = None if copy is None else self._late_decisions.committed(copy)
        if not committed:
            self.refused += 1
            log.info("repeated send refused, its transaction is settled: msg_id=%.80r group=%s topic=%s", key, group, topic)
            raise settled_already(key, expired=copy is not None and committed is None)

    def _answer(self, request: Request, first: StoredMessage, queue_id: int) -> None:
        """Reply as to the first attempt."""
        self.merged += 1
        log.info("repeated send merged: msg_id=%.80r topic=%s queue_offset=%d", first.msg_id, first.topic, first.queue_offset)
        messages = Messages.lying_at([first.physical_offset])
        messages.sent(*sender_of(request, wait=self._pending_replies.slaves is not None), 1)  # it has waited for the device
        self._sends.acknowledge([StoredGroup(messages, queue_id, first.queue_offset)])
