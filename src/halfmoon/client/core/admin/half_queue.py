"""Transactions of a broker that keeps no table of them, by its half and op queues. Only reads.

Pending is what lies in the half queue at or behind the progress of the broker's own group and is named by no op record. A check
writes the half message anew behind the others, so the newest copy counts. Bodies of op records are one offset (4.x) or many
joined by commas (5.x).
"""

from __future__ import annotations

from typing import NamedTuple

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.find import QUERY_TIMEOUT_MS, read_page
from halfmoon.client.core.admin.transaction_facts import (
    COMMITTED,
    EXPIRED,
    PREPARED,
    READ_FROM_QUEUES,
    ROLLED_BACK,
    UNCLEAR,
    TransactionAt,
)
from halfmoon.client.core.ask import ask, call
from halfmoon.client.core.consume.pull import unpacked
from halfmoon.client.core.names import unwrap
from halfmoon.effects import Op, gather
from halfmoon.errors import BrokerError, QueryNotFound, TopicNotFound, UsageError
from halfmoon.limits import BODY_BYTES_MAX
from halfmoon.model import MessageQueue, StoredMessage
from halfmoon.wire.bodies import ProducerConnection, from_json
from halfmoon.wire.codes import TRANSACTION_COMMIT, TRANSACTION_MASK
from halfmoon.wire.headers.client import GetProducerConnectionList
from halfmoon.wire.headers.offset import GetMaxOffset, GetMinOffset, OffsetReply, QueryConsumerOffset, SearchOffsetByTimestamp
from halfmoon.wire.headers.pull import QueryConsumeQueue, QueryMessage, ViewMessageById
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.json import Body
from halfmoon.wire.record import decode_record, decode_records
from halfmoon.wire.table import I64

HALF_TOPIC, OP_TOPIC, EXPIRED_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
SETTLING_GROUP = "CID_RMQ_SYS_TRANS"
"""The group whose progress says how far brokers have settled these queues."""

RECORDS_MAX = 100_000
"""Most records of one queue that one request reads: some 3,000 pulls. What lies behind them is ignored."""

ENTRIES_MAX, ENTRIES_COUNT = 20_000, 64
"""Records that are read one by one: the most in all, and the most concurrently."""

COPIES_MAX = 64
NAMED_MAX = 8
"""Transactions that are named where a key is that of several."""
OFFSET_DIGITS_MAX = 18


class HalfQueue(NamedTuple):
    """Half messages of one broker without a settled end.

    In the order of the queue, with those of them that are decided, the offset at which they begin, and whether all were read.
    """

    halves: list[StoredMessage]
    decided: frozenset[int]
    begin: int
    whole: bool

    def pending(self) -> list[StoredMessage]:
        """Return the newest copy of each undecided one, the oldest first."""
        newest = {half.msg_id: half for half in self.halves}
        return sorted((half for half in newest.values() if not _places(half) & self.decided), key=since_ms)


def half_queue(admin: AdminCore, address: str) -> Op[HalfQueue]:
    """Read what is not settled yet. Raises NetworkError, BrokerError."""
    op_begin = yield from _settled(admin, address, OP_TOPIC)
    begin = yield from _settled(admin, address, HALF_TOPIC)
    halves, all_halves = yield from records(admin, address, HALF_TOPIC, begin)
    ops, all_ops = yield from records(admin, address, OP_TOPIC, op_begin)  # after them: whatever was decided is in it
    return HalfQueue(halves, decided_by(ops), begin, all_halves and all_ops)


def decided_by(ops: list[StoredMessage]) -> frozenset[int]:
    """Return the half queue offsets that op records name. Anything else in them is passed over."""
    texts = (text for op in ops for text in op.beginning(BODY_BYTES_MAX).decode("ascii", "replace").split(","))
    return frozenset(int(text) for text in texts if text.isdigit() and len(text) <= OFFSET_DIGITS_MAX)


def _places(half: StoredMessage) -> frozenset[int]:
    """Return the queue offsets by which an op record may mean a half message: its own, and the first of one that was too young."""
    first = half.properties.get("TRAN_PREPARED_QUEUE_OFFSET", "")
    return frozenset((half.queue_offset, int(first)) if first.isdigit() else (half.queue_offset,))


def since_ms(half: StoredMessage) -> int:
    """Return when a half message's age began."""
    is_copy = any(name in half.properties for name in ("TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"))
    return half.born_ms if is_copy else half.store_ms


# ---------------------------------------------------------------- one transaction


def newest_copy(admin: AdminCore, address: str, name: str | int) -> Op[list[StoredMessage]]:
    """Return the copies of the half message with an id, the newest first.

    A text is the sender's id, a key, or the broker's id of any copy; a number is a half queue offset. Raises QueryNotFound,
    UsageError when a key names several, BrokerError.
    """
    if isinstance(name, int):
        halves, _ = yield from records(admin, address, HALF_TOPIC, name, 1)
        halves = [half for half in halves if half.queue_offset == name]
    else:
        halves = yield from _by_place(admin, address, name)
        if not halves:
            halves = yield from _by_unique(admin, address, HALF_TOPIC, name)
        if not halves:
            keyed = yield from _query(admin, address, HALF_TOPIC, name)
            halves = [half for half in keyed if name in half.keys]
            if len(named := {half.msg_id: half.offset_msg_id for half in halves}) > 1:
                ids = ", ".join(list(named.values())[:NAMED_MAX])
                raise UsageError(f"the key {name!r} names {len(named)} transactions, give one of: {ids}")
    if not halves:
        raise QueryNotFound(f"there is no half message {name!r}", address)
    halves.sort(key=lambda half: half.queue_offset)
    copies = yield from _by_unique(admin, address, HALF_TOPIC, halves[-1].msg_id)
    everything = {half.queue_offset: half for half in [halves[-1], *copies]}
    return [everything[offset] for offset in sorted(everything, reverse=True)]


def _by_place(admin: AdminCore, address: str, name: str) -> Op[list[StoredMessage]]:
    try:
        place = parse_offset_msg_id(name).physical_offset
        reply = yield from ask(address, ViewMessageById(offset=place), b"", admin.settings.request_timeout_ms)
    except (UsageError, BrokerError):
        return []
    message = decode_record(bytes(reply.body))
    return [unpacked(message)] if message.topic == HALF_TOPIC and message.offset_msg_id == name.upper() else []


def state_of(admin: AdminCore, address: str, copies: list[StoredMessage]) -> Op[str]:
    """Return the state of a half message, by its visible message, later op records, or its copy among the expired messages.

    A decision on any copy counts, for it was the sender's; the broker may ask about a later one all the same.
    """
    newest, oldest = copies[0], copies[-1]
    visible = yield from _by_unique(admin, address, newest.properties.get("REAL_TOPIC", ""), newest.msg_id)
    if {message.prepared_transaction_offset for message in visible} & {copy.physical_offset for copy in copies}:
        return COMMITTED
    begin = yield from _settled(admin, address, HALF_TOPIC)
    op_begin = yield from _settled(admin, address, OP_TOPIC)
    if oldest.queue_offset < begin:
        request = SearchOffsetByTimestamp(topic=OP_TOPIC, queue_id=0, timestamp=oldest.store_ms)
        reply = yield from ask(address, request, b"", admin.settings.request_timeout_ms)
        op_begin = min(op_begin, reply.header(OffsetReply).offset)
    ops, complete = yield from records(admin, address, OP_TOPIC, op_begin)
    decided = decided_by(ops)
    if any(_places(copy) & decided for copy in copies):
        return ROLLED_BACK
    if newest.queue_offset >= begin:
        return PREPARED if complete else UNCLEAR
    expired = yield from copies_behind(admin, address, EXPIRED_TOPIC, newest.msg_id, newest.physical_offset)
    return EXPIRED if expired else UNCLEAR


def transaction_at(admin: AdminCore, broker: str, address: str, half: StoredMessage, state: str, checks_max: int) -> TransactionAt:
    """Return what a stored half message says of its transaction; producers are not counted here."""
    properties, namespace = half.properties, admin.settings.namespace
    sent, queue = properties.get("TRANSACTION_CHECK_TIMES", ""), properties.get("REAL_QID", "")
    sent_count = int(sent) if sent.isdigit() and len(sent) < 6 else 0
    return TransactionAt(
        index=half.queue_offset, commit_log_offset=half.physical_offset, offset_msg_id=half.offset_msg_id, msg_id=half.msg_id,
        state=state, group=unwrap(properties.get("PGROUP", ""), namespace),
        topic=unwrap(properties.get("REAL_TOPIC", ""), namespace), queue_id=int(queue) if queue.isdigit() else 0,
        tag=half.tag or "", keys=properties.get("KEYS", ""),
        size_bytes=half.size_bytes, born_ms=half.born_ms, stored_ms=half.store_ms, checks_sent=sent_count,
        checks_left=max(0, checks_max - sent_count), next_check_ms=-1 if state == PREPARED else 0, broker=broker, address=address,
        since_ms=since_ms(half), not_reported=list(READ_FROM_QUEUES),
    )  # fmt: skip


def checks_max_of(admin: AdminCore, address: str) -> Op[int]:
    """Return how often a broker asks about one half message."""
    text = (yield from admin.broker_config(address)).get("transactionCheckMax", "")
    return int(text) if text.isdigit() else 15


def producer_count(admin: AdminCore, address: str, group: str) -> Op[int]:
    """Return how many producers of a group, by its name on the wire, are connected to a broker."""
    request = GetProducerConnectionList(producer_group=group)
    reply = yield from call(address, request, b"", admin.settings.request_timeout_ms)
    return len(from_json(ProducerConnection, reply.body).connection_set) if reply.code == 0 else 0  # 1: no producer at all


# ---------------------------------------------------------------- reading


def records(
    admin: AdminCore, address: str, topic: str, begin: int, count_max: int = RECORDS_MAX
) -> Op[tuple[list[StoredMessage], bool]]:
    """Return messages of queue 0 of a topic from an offset on, bodies of op records only, and whether that was all of them.

    Apache's brokers write op records without a topic for them, and refuse to have them pulled: then each is read by its place.
    """
    messages: list[StoredMessage] = []
    at, queue = begin, MessageQueue(topic, "", 0)
    while len(messages) < count_max:
        try:
            page = yield from read_page(admin, address, queue, at, count_max - len(messages))
        except TopicNotFound:
            return (yield from _by_entries(admin, address, topic, begin, count_max))
        if page is None or page.next_offset == at:
            return messages, page is not None
        if topic != OP_TOPIC:
            for message in page.messages:
                message.body = b""  # looked at by nobody, and up to 4 MiB each
        messages += page.messages
        at = page.next_offset
    return messages, False


class _Entry(Body):
    physic_offset: I64 = -1


class _Entries(Body):
    """Reply of 321."""

    queue_data: list[_Entry] = []  # noqa: RUF012
    max_queue_index: I64 = 0


def _by_entries(admin: AdminCore, address: str, topic: str, begin: int, count_max: int) -> Op[tuple[list[StoredMessage], bool]]:
    """Return messages of a queue that cannot be pulled, record by record; a record that is gone is left out."""
    messages: list[StoredMessage] = []
    at, most = begin, begin + min(count_max, ENTRIES_MAX)
    while at < most:
        request = QueryConsumeQueue(topic=topic, queue_id=0, index=at, count=min(ENTRIES_COUNT, most - at))
        reply = yield from call(address, request, b"", admin.settings.request_timeout_ms)
        entries = from_json(_Entries, reply.body) if reply.code == 0 and reply.body else _Entries()
        if not entries.queue_data:  # behind the end of the queue, or no such queue
            return messages, True
        looks = [_record(admin, address, entry.physic_offset) for entry in entries.queue_data]
        for outcome in (yield from gather(looks)):
            if isinstance(outcome, Exception):
                raise outcome
            messages += outcome
        at += len(entries.queue_data)
        if at >= entries.max_queue_index:
            return messages, True
    return messages, False


def _record(admin: AdminCore, address: str, place: int) -> Op[list[StoredMessage]]:
    try:
        reply = yield from ask(address, ViewMessageById(offset=place), b"", admin.settings.request_timeout_ms)
    except BrokerError:
        return []
    return [unpacked(decode_record(bytes(reply.body)))]


def ends(admin: AdminCore, address: str, topic: str) -> Op[tuple[int, int]]:
    """Return the offsets of the oldest and behind the newest message of queue 0 of a topic."""
    offsets = []
    for request in (GetMinOffset(topic=topic, queue_id=0), GetMaxOffset(topic=topic, queue_id=0)):
        reply = yield from ask(address, request, b"", admin.settings.request_timeout_ms)
        offsets.append(max(0, reply.header(OffsetReply).offset))
    return offsets[0], offsets[1]


def _settled(admin: AdminCore, address: str, topic: str) -> Op[int]:
    """Return up to where a queue is settled."""
    request = QueryConsumerOffset(consumer_group=SETTLING_GROUP, topic=topic, queue_id=0)
    try:
        reply = yield from ask(address, request, b"", admin.settings.request_timeout_ms)
    except QueryNotFound:
        return (yield from ends(admin, address, topic))[0]
    return max(0, reply.header(OffsetReply).offset)


def expired_copies(admin: AdminCore, address: str, unique: str) -> Op[list[StoredMessage]]:
    """Return the copies of a sender's id in the topic of expired messages."""
    return (yield from _by_unique(admin, address, EXPIRED_TOPIC, unique))


def committed_late(admin: AdminCore, address: str, copy: StoredMessage) -> Op[bool]:
    """Return whether a half message was committed although it had expired; ``copy`` lies in the topic of expired messages."""
    visible = yield from _by_unique(admin, address, copy.properties.get("REAL_TOPIC", ""), copy.msg_id)
    place = copy.prepared_transaction_offset
    return any(
        message.prepared_transaction_offset == place and message.as_stored()[1] & TRANSACTION_MASK == TRANSACTION_COMMIT
        for message in visible
    )


def _by_unique(admin: AdminCore, address: str, topic: str, unique: str) -> Op[list[StoredMessage]]:
    return [message for message in (yield from _query(admin, address, topic, unique, unique=True)) if message.msg_id == unique]


def _query(admin: AdminCore, address: str, topic: str, key: str, *, unique: bool = False) -> Op[list[StoredMessage]]:
    """Return messages of a topic, by its name on the wire, that carry a key; brokers compare hashes only."""
    if not topic or not key:
        return []
    request = QueryMessage(
        topic=topic, key=key, max_num=COPIES_MAX, begin_timestamp=0, end_timestamp=2**62, unique_key_query=unique or None
    )
    try:
        reply = yield from ask(address, request, b"", QUERY_TIMEOUT_MS)
    except QueryNotFound:
        return []
    return [unpacked(message) for message in decode_records(reply.body) if message.topic == topic]


def copies_behind(admin: AdminCore, address: str, topic: str, unique: str, physical_offset: int) -> Op[bool]:
    """Return whether a message of a topic with a sender's id lies behind a place in the broker's log."""
    copies = yield from _by_unique(admin, address, topic, unique)
    return any(copy.physical_offset > physical_offset for copy in copies)
