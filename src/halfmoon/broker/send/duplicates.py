"""Repeats: a message that its sender sends again under the same id, because the first answer was lost, is stored once.

Only sends that say that they are repeats (``INNER_REPEAT``, see `halfmoon.model.Message.attempt`) come here, one at a time:
nobody else pays for it. The key index, and what of the log it has not reached, says whether the id is known: half messages
by UNIQ_KEY, producer group and topic, others by UNIQ_KEY and topic. So it holds over a restart, and as long as messages are kept.

Differs: the original stores a repeat as a message of its own, and so does this broker where a message is delayed, comes from a
consumer, or is part of a batch.
"""

from __future__ import annotations

import logging

from msgspec import structs

from halfmoon.broker.context import Context
from halfmoon.broker.lookup import messages_with
from halfmoon.broker.names import DEAD_PREFIX, HALF_TOPIC, RETRY_PREFIX
from halfmoon.broker.request import Handler, Request
from halfmoon.broker.send.replies import Stored
from halfmoon.broker.send.sends import SendHeaderOf, Sends, may_be_delayed, sender_of
from halfmoon.broker.transactions.half import PRODUCER_GROUP, REAL_QUEUE, REAL_TOPIC
from halfmoon.broker.transactions.late_decisions import LateDecisions
from halfmoon.errors import BrokerError, SystemBusy, settled_already
from halfmoon.hot import Messages
from halfmoon.model import REPEAT, UNIQ_KEY, StoredMessage
from halfmoon.store.transactions.index import State, TransactionIndex
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.properties import without

KNOWN_MAX = 10_000
"""Ids of repeats that are new and not durable; more repeats are refused with 2, and nothing of them is stored."""

_MARK = frozenset((REPEAT.encode(),))

log = logging.getLogger("halfmoon.broker")


class Repeats:
    """Says what became of the first attempt. With sync flush a repeat waits until that could be seen."""

    def __init__(self, context: Context, index: TransactionIndex, sends: Sends, late: LateDecisions) -> None:
        self._store, self._durable, self._index, self._sends, self._late = context.store, context.durable, index, sends, late
        self._judged: Request | None = None
        self._stored: dict[tuple[str, str], int] = {}
        """Ids of repeats that were new and that are not durable: the end of the log behind them."""
        self.merged = self.refused = 0

    def take(self, request: Request, header: SendHeaderOf, again: Handler) -> SendHeaderOf | None:
        """Return a marked send as it is to be stored, without its mark; None: it is answered, or waits for the device until
        ``again`` handles it anew.

        Raises BrokerError 4 for a half message that was rolled back or expired, SystemBusy (2) when too many wait.
        """
        text = header.properties or ""
        plain = structs.replace(header, properties=without(text.encode(), _MARK).decode())
        found = wire_properties.decode(text.encode())
        key, topic = found.get(UNIQ_KEY, ""), header.topic
        if not key or header.reconsume_times or may_be_delayed(text) or topic.startswith((RETRY_PREFIX, DEAD_PREFIX)):
            return plain
        if self._waits(request, (topic, key), again):
            return None
        group = found.get(PRODUCER_GROUP, "") if found.get("TRAN_MSG", "").lower() == "true" else None
        first = self._first_plain(topic, key) if group is None else self._first_half(topic, key, group)
        if first is not None:
            self._answer(request, *first)
            return None
        if self._store.sync_flush:
            self._remember(topic, key)
        return plain

    # ------------------------------------------------------------ inside

    def _waits(self, request: Request, key: tuple[str, str], again: Handler) -> bool:
        """Keep a repeat until the device has what came before it: only then the first attempt is seen."""
        store = self._store
        if not store.sync_flush or store.durable_offset >= store.end_offset:
            return False
        if request is self._judged and store.durable_offset >= self._stored.get(key, 0):
            return False
        size = len(request.command.body)
        self._durable.check_room(size)

        def judge(refusal: BrokerError | None, now: int) -> None:
            if refusal is None:
                self._judge(request, now, again)
            else:
                self._sends.acks.refuse_one(request, refusal)

        self._durable.promised(judge, size)
        return True

    def _judge(self, request: Request, now: int, again: Handler) -> None:
        """Handle a repeat that waited until the first attempt could be seen."""
        request.now, self._judged = now, request
        try:
            again(request)
        except Exception as exc:  # our own mistake: this send fails, those that waited with it do not feel it
            log.exception("a repeat of %s that waited failed", request.peer.remote)
            self._sends.acks.refuse_one(request, BrokerError(f"{type(exc).__name__}: {exc}"))
        finally:
            self._judged = None
        self._store.flush(1)

    def _remember(self, topic: str, key: str) -> None:
        """Remember the id of a repeat that is new: until it is durable, another repeat of it does not see it."""
        if len(self._stored) >= KNOWN_MAX:
            durable = self._store.durable_offset
            self._stored = {one: end for one, end in self._stored.items() if end > durable}
            if len(self._stored) >= KNOWN_MAX:
                raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: the disk does not keep up")
        self._stored[topic, key] = self._store.end_offset + 1  # it is stored behind this

    def _first_plain(self, topic: str, key: str) -> tuple[StoredMessage, int] | None:
        found = messages_with(self._store, topic, key)
        return (found[-1], found[-1].queue_id) if found else None

    def _first_half(self, topic: str, key: str, group: str) -> tuple[StoredMessage, int] | None:
        for message in messages_with(self._store, HALF_TOPIC, key):
            properties = message.properties
            if properties.get(PRODUCER_GROUP) != group or properties.get(REAL_TOPIC) != topic:
                continue
            half = self._index.half(message.queue_offset)
            if half is None or half.physical_offset != message.physical_offset or half.state == State.NONE:
                continue
            copy = self._late.copy_of(key, group, message.physical_offset) if half.state == State.ROLLED_BACK else None
            if half.state == State.ROLLED_BACK and (copy is None or not self._late.committed(copy)):
                self.refused += 1
                log.info("repeat refused, it was settled: msg_id=%.80r group=%s topic=%s", key, group, topic)
                raise settled_already(key, expired=copy is not None and self._late.committed(copy) is None)
            queue = properties.get(REAL_QUEUE, "")
            return message, int(queue) if queue.isdigit() and len(queue) < 10 else 0
        return None

    def _answer(self, request: Request, first: StoredMessage, queue_id: int) -> None:
        """Answer a repeat as the first attempt was."""
        self.merged += 1
        log.info("repeat merged: msg_id=%.80r topic=%s queue_offset=%d", first.msg_id, first.topic, first.queue_offset)
        messages = Messages.lying_at([first.physical_offset])
        messages.sent(*sender_of(request, wait=False), 1)
        self._sends.acknowledge([Stored(messages, queue_id, first.queue_offset)], request.now)
