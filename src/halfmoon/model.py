"""Plain values that users and all layers share: messages, queues, results. They hold facts and derive a few; they do nothing.

Offsets: ``queue_offset`` counts messages of one queue, ``physical_offset`` counts bytes of a broker's commit log.
Times end in ``_ms``: milliseconds since the epoch, of the clock that the name says (born: the producer's, store: the broker's).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum

import msgspec

from halfmoon.errors import MessageIllegal, UsageError

KEYS, TAGS, WAIT, DELAY, UNIQ_KEY = "KEYS", "TAGS", "WAIT", "DELAY", "UNIQ_KEY"
RESERVED_PROPERTIES = frozenset({
    "KEYS", "TAGS", "WAIT", "DELAY", "UNIQ_KEY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "MIN_OFFSET",
    "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME",
    "MSG_REGION", "TRACE_ON", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "TRAN_PREPARED_QUEUE_OFFSET",
    "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL",
    "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
    "EXTEND_UNIQ_INFO", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "DUP_INFO", "__CRC32#",
})  # fmt: skip
"""Property names that belong to the protocol. Follows MessageConst.STRING_HASH_SET (4.9.8), with the 5.x receipt names."""


class MessageQueue(msgspec.Struct, frozen=True, order=True):
    """One queue of a topic on one broker. Sorts by topic, broker name, queue number, as rebalancing needs it."""

    topic: str
    broker_name: str
    queue_id: int


class Message(msgspec.Struct, kw_only=False):
    """A message to send.

    ``tag`` is one tag that consumers may subscribe to; ``keys`` are searchable texts without blanks; ``properties`` are the
    user's own name and value texts; ``flag`` is a number that travels untouched; ``wait_store`` asks to wait for the broker's
    sync where the broker is set so; ``delay_level`` 1 to 18 delays delivery, 0 does not. ``transaction_id`` is set on the message
    that a local transaction is given; sending does not look at it.
    """

    topic: str
    body: bytes
    tag: str | None = None
    keys: tuple[str, ...] | list[str] | str = ()
    properties: dict[str, str] = {}
    flag: int = 0
    wait_store: bool = True
    delay_level: int = 0
    transaction_id: str | None = None

    def wire_properties(self) -> dict[str, str]:
        """Return all properties as they travel, the protocol's own included, in a new dict.

        Raises:
            MessageIllegal: a user property has a reserved or blank name, a blank value, or a separator inside.
        """
        for name, value in self.properties.items():
            if name in RESERVED_PROPERTIES:
                raise MessageIllegal(f"The Property<{name}> is used by system, input another please")
            if not name.strip() or not value.strip():
                raise MessageIllegal("The name or value of property can not be null or blank string!")
        found = dict(self.properties)
        keys = self.keys if isinstance(self.keys, str) else " ".join(self.keys)
        if keys:
            found[KEYS] = keys
        if self.tag:
            found[TAGS] = self.tag
        if self.delay_level:
            found[DELAY] = str(self.delay_level)
        found[WAIT] = "true" if self.wait_store else "false"
        for name, value in found.items():
            if "\x01" in name + value or "\x02" in name + value:
                raise MessageIllegal(f"property {name!r} contains a separator (0x01 or 0x02)")
        return found


class StoredMessage(msgspec.Struct):
    """A message as a broker keeps it and a consumer gets it.

    ``properties`` are all of them, the protocol's own included. ``body`` is as the sender gave it when the message came through
    a consumer, and as stored (perhaps compressed, see ``sys_flag``) when a record was decoded raw. Hosts are ``ip:port``.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    size_bytes: int
    offset_msg_id: str
    broker_name: str = ""

    @property
    def msg_id(self) -> str:
        """The sender's id of the message (UNIQ_KEY), or the broker's when there is none."""
        return self.properties.get(UNIQ_KEY) or self.offset_msg_id

    @property
    def transaction_id(self) -> str:
        """The id of the message's transaction, which is the sender's id of the message."""
        return self.msg_id

    @property
    def tag(self) -> str | None:
        """The message's tag."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The message's keys."""
        return tuple(self.properties.get(KEYS, "").split())

    @property
    def queue(self) -> MessageQueue:
        """The queue it lies in."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class SendStatus(Enum):
    """What the broker promised. Every status but SEND_OK means: stored, but a promise of the broker's mode was not kept in time."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(msgspec.Struct):
    """Where a message went. ``msg_id`` is the sender's id, ``offset_msg_id`` the broker's (of a batch: joined by commas)."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str = "DefaultRegion"
    trace_on: bool = True


class LocalTransactionState(IntEnum):
    """What became of a local transaction; the numbers are those of the wire.

    UNKNOWN tells the broker nothing: it keeps the half message and asks again later.
    """

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class TransactionSendResult(SendResult):
    """Where a half message went, and what was told to its broker.

    ``local_error`` is what the local transaction raised; the state is UNKNOWN then.

    Differs: the original gives no ``offset_msg_id`` here.
    """

    local_state: LocalTransactionState = LocalTransactionState.UNKNOWN
    local_error: Exception | None = None


class PullStatus(Enum):
    """How a pull ended."""

    FOUND = 0
    NO_NEW_MSG = 19
    NO_MATCHED_MSG = 20
    OFFSET_ILLEGAL = 21


class PullResult(msgspec.Struct):
    """What one pull brought. ``next_offset`` is where the next pull of the queue begins; ``skipped`` are the offsets of records
    that do not decode and are left out."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[StoredMessage]
    suggested_broker_id: int = 0
    skipped: tuple[int, ...] = ()


class MessageModel(IntEnum):
    """Whether the members of a group share the messages or each gets all."""

    BROADCASTING = 0
    CLUSTERING = 1


class ConsumeType(IntEnum):
    """How a consumer says that it consumes."""

    CONSUME_ACTIVELY = 0
    CONSUME_PASSIVELY = 1
    CONSUME_POP = 2


class ConsumeFrom(IntEnum):
    """Where a group without stored progress begins."""

    LAST_OFFSET = 0
    FIRST_OFFSET = 4
    TIMESTAMP = 5


class ConsumeStatus(Enum):
    """What a listener says of the messages it was given."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class Subscription(msgspec.Struct, frozen=True):
    """What a consumer wants of one topic: an expression of type TAG (``*`` or tags joined by ``||``) or SQL92.

    ``version`` is when it was made, in ms: a broker keeps the newest of a group.
    """

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()
    version: int = 0


def subscription(topic: str, expression: str | None = "*", expression_type: str = "TAG", *, version: int = 0) -> Subscription:
    """Return the subscription that an expression describes. ``codes`` are the Java hashes of its tags.

    Raises:
        UsageError: a tag expression with nothing but separators.

    Follows FilterAPI.buildSubscriptionData (RocketMQ 4.9.8).
    """
    if expression_type != "TAG":
        return Subscription(topic, expression or "", expression_type, version=version)
    if not expression or expression == "*":
        return Subscription(topic, "*", version=version)
    tags = frozenset(part.strip() for part in expression.split("||")) - {""}
    if not tags:
        raise UsageError("subString split error")
    return Subscription(topic, expression, "TAG", tags, frozenset(java_hash(tag) for tag in tags), version)


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: base 31 over UTF-16 units, 32 bits, signed."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = value * 31 + unit & 0xFFFFFFFF
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        for i in range(0, len(data), 2):
            value = value * 31 + (data[i] << 8 | data[i + 1]) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, ``[v6]:port`` or ``v6:port`` (split at the last colon). Raises UsageError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"not an address of the form host:port: {address!r}")
    return host.strip("[]"), int(port)


def split_addresses(text: str | Iterable[str]) -> list[str]:
    """Return the addresses of a list joined by ``;`` (or ``,``); each is checked. Raises UsageError."""
    parts = text.replace(",", ";").split(";") if isinstance(text, str) else text
    found = [part.strip() for part in parts if part.strip()]
    for address in found:
        split_address(address)
    return found
