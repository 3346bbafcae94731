"""Half messages: sends with ``TRAN_MSG=true``, stored under a topic that nobody consumes until their transaction is decided.

A half message is an ordinary record in queue 0 of ``RMQ_SYS_TRANS_HALF_TOPIC`` that remembers in REAL_TOPIC and REAL_QID where it
belongs; its queue offset there is its place in the transaction index. Ordinary half messages of a turn are stored together,
unusual ones one at a time by the plain road. Decides nothing about transactions (see `halfmoon.broker.decisions`).

Follows TransactionalMessageBridge.parseHalfMessageInner (RocketMQ 4.9.8).
Differs: a delay on a half message is cleared, as the original's own producer does; there it would park the half message, and no
check would ever see it. A half message without a producer group is refused, for nobody could be asked about it. REAL_TOPIC,
REAL_QID and counts of checks that a sender made up are dropped.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from halfmoon.broker.acks import Sender, Stored
from halfmoon.broker.names import HALF_TOPIC
from halfmoon.broker.request import Request
from halfmoon.broker.send import Sends, is_transactional
from halfmoon.errors import BrokerError, MessageRefused, ServiceNotAvailable, StoreNotWritable
from halfmoon.hot import tag_hash
from halfmoon.limits import PROPERTIES_BYTES_MAX
from halfmoon.store.parts import size_of
from halfmoon.store.store import Draft
from halfmoon.store.transactions import TransactionIndex
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.flags import BORN_HOST_V6, TRANSACTION_MASK
from halfmoon.wire.headers.send import SendMessage, SendMessageV2

log = logging.getLogger("halfmoon.broker.transactions")

PRODUCER_GROUP, REAL_TOPIC, REAL_QUEUE, CHECK_TIMES = "PGROUP", "REAL_TOPIC", "REAL_QID", "TRANSACTION_CHECK_TIMES"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
OURS = frozenset({
    REAL_TOPIC, REAL_QUEUE, CHECK_TIMES, "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_GIVEN_UP_REASON", "TRANSACTION_CHECK_HISTORY",
    "CLUSTER",
})  # fmt: skip
"""Properties of a half message that only the broker gives."""
DELAYS = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})

_UNUSUAL = (b"DELAY", b"TIMER_", b"REAL_", b"CLUSTER", b"INNER_", b"CHECK_", b"TRAN_P", b"TRANSACTION_")
_SUFFIXES_MAX = 4096
_HALF_BYTES = len(HALF_TOPIC)


class Prepared(NamedTuple):
    """Properties of a half message ready to be stored."""

    properties: bytes
    tag_code: int
    wait: bool
    group_hash: int


class _Half(NamedTuple):
    draft: Draft
    group_hash: int
    sender: Sender | None
    queue_id: int
    wait: bool


class Halves:
    """The service that stores half messages. ``immunity_seen``: some half message asked for a minimum age of its own."""

    def __init__(self, sends: Sends, index: TransactionIndex, host: bytes) -> None:
        self._sends, self._index, self._host = sends, index, host
        self._taken: list[_Half] = []
        self._suffixes: dict[tuple[str, int], bytes] = {}
        self._cluster_pair = sends.cluster_pair
        self.stored = 0
        self.immunity_seen = index.pending_count > 0

    # ------------------------------------------------------------ a turn

    def take(
        self, sender: Sender, topic: str, queue_id: int, text: bytes, body: bytes, user_flag: int, sys_flag: int, born_ms: int,
        reconsume: int,
    ) -> bool:  # fmt: skip
        """Take one send of this turn when it is an ordinary half message; its queue is known to take sends."""
        prepared = prepare_quickly(text, self._suffix(topic, queue_id))
        if prepared is None:
            return False
        self._add(prepared, sender, queue_id, sender[0].host, body, user_flag, sys_flag, born_ms, reconsume)
        return True

    def send(self, request: Request, header: SendMessage | SendMessageV2, queue_id: int) -> None:
        """Take one half message by the plain road. Raises MessageRefused (13)."""
        prepared = self.prepare((header.properties or "").encode(), header.topic, queue_id)
        command, host = request.command, request.peer.host
        sender = None if command.is_oneway else (request.peer, command.opaque, command.serialization)
        self._add(
            prepared, sender, queue_id, host, bytes(command.body), header.flag, header.sys_flag, header.born_timestamp,
            header.reconsume_times or 0,
        )  # fmt: skip
        self.store(request.now)

    def _add(
        self, prepared: Prepared, sender: Sender | None, queue_id: int, host: bytes, body: bytes, flag: int, sys_flag: int,
        born_ms: int, reconsume: int,
    ) -> None:  # fmt: skip
        sys_flag = sys_flag & ~TRANSACTION_MASK | (BORN_HOST_V6 if len(host) > 8 else 0)
        properties, code, wait, group_hash = prepared
        draft = (body, properties, flag, sys_flag, born_ms, host, reconsume, 0, code)
        self._taken.append(_Half(draft, group_hash, sender, queue_id, wait))

    def store(self, now: int) -> None:
        """Append everything taken and have it answered."""
        if not self._taken:
            return
        taken, self._taken = self._taken, []
        try:
            self._store_together(taken, now)
        except Exception as exc:  # our own mistake: these sends fail, others do not feel it
            log.exception("%d half messages failed", len(taken))
            self._sends.refuse([half.sender for half in taken], BrokerError(f"{type(exc).__name__}: {exc}"))

    def _store_together(self, halves: list[_Half], now: int) -> None:
        try:
            first = self.append([half.draft for half in halves], [half.group_hash for half in halves], now)
        except MessageRefused as exc:
            if len(halves) == 1:
                self._sends.refuse([halves[0].sender], exc)
                return
            for half in halves:  # one of them cannot be stored, and so none was: find out which
                self._store_together([half], now)
            return
        except BrokerError as exc:
            self._sends.refuse([half.sender for half in halves], exc)
            return
        queue_offset, places, end = first
        for number, half in enumerate(halves):
            if half.sender is not None:
                stored = Stored([half.sender], half.queue_id, queue_offset + number, places[number : number + 1], end)
                self._sends.acknowledge(stored, now, wait=half.wait)

    def append(self, drafts: list[Draft], group_hashes: list[int], now: int) -> tuple[int, list[int], int]:
        """Append half messages and enter them into the index; return first queue offset, physical offsets and the end.

        Raises what `Sends.append` does.
        """
        try:
            self._index.make_room(len(drafts), 0)
        except StoreNotWritable as exc:
            raise ServiceNotAvailable(f"service not available now: {exc}") from exc
        appended = self._sends.append(HALF_TOPIC, 0, drafts, now)
        places, store_s, host = appended.physical_offsets, now // 1000, self._host
        self._index.prepared(
            appended.queue_offset,
            [
                (place, size_of(_HALF_BYTES, len(draft[0]), len(draft[1]), draft[5], host), store_s, group_hash)
                for place, draft, group_hash in zip(places, drafts, group_hashes)
            ],
        )
        self.stored += len(drafts)
        return appended.queue_offset, places, appended.end_offset

    # ------------------------------------------------------------ properties

    def prepare(self, text: bytes, topic: str, queue_id: int) -> Prepared:
        """Return the properties that a half message is stored with. Raises MessageRefused (13)."""
        found = wire_properties.decode(text)
        group = found.get(PRODUCER_GROUP, "")
        if not group:
            raise MessageRefused(f"a half message names its producer group in {PRODUCER_GROUP}: nobody could be asked about it")
        if delays := sorted(DELAYS & found.keys()):
            log.warning("a half message to %s asks for a delay (%s), which is cleared", topic, ", ".join(delays))
        if IMMUNITY in found:
            self.immunity_seen = True
        wait = found.get("WAIT", "true").lower() == "true"
        kept = {name: value for name, value in found.items() if name not in OURS and name not in DELAYS}
        tag = found.get("TAGS", "")
        stored = wire_properties.encode(kept) + self._suffix(topic, queue_id)
        if len(stored) > PROPERTIES_BYTES_MAX:
            raise MessageRefused(f"the message is illegal: its properties take {len(stored)} bytes, over {PROPERTIES_BYTES_MAX}")
        return Prepared(stored, tag_hash(tag.encode()) if tag else 0, wait, tag_hash(group.encode()))

    def _suffix(self, topic: str, queue_id: int) -> bytes:
        suffix = self._suffixes.get((topic, queue_id))
        if suffix is None:
            if len(self._suffixes) >= _SUFFIXES_MAX:
                self._suffixes.clear()
            suffix = self._cluster_pair + wire_properties.encode({REAL_TOPIC: topic, REAL_QUEUE: str(queue_id)})
            self._suffixes[topic, queue_id] = suffix
        return suffix


def prepare_quickly(text: bytes, suffix: bytes) -> Prepared | None:
    """Prepare the properties of an ordinary half message as `Halves.prepare` does; None for any other and for anything unusual."""
    if not text.isascii() or len(text) + len(suffix) >= PROPERTIES_BYTES_MAX or not is_transactional(text):
        return None
    for name in _UNUSUAL:
        if name in text:
            return None
    group = wire_properties.value_of(text, b"PGROUP")
    if group is None:
        return None
    tag = wire_properties.value_of(text, b"TAGS")
    wait = wire_properties.value_of(text, b"WAIT") if b"WAIT\x01" in text else None
    stored = text + suffix if text.endswith(b"\x02") else text + b"\x02" + suffix
    return Prepared(stored, tag_hash(tag) if tag else 0, wait is None or wait.lower() == b"true", tag_hash(group))
