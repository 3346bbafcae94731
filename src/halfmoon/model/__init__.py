"""Plain values that users and all layers share: messages, queues, results. They hold facts and derive a few; they do nothing.

Offsets: ``queue_offset`` counts messages of one queue, ``physical_offset`` counts bytes of a broker's commit log.
Times end in ``_ms``: milliseconds since the epoch, of the clock that the name says (born: the producer's, store: the broker's).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

import msgspec

from halfmoon.errors import UsageError
from halfmoon.limits import REASON_LENGTH_MAX
from halfmoon.model.message import (
    DEAD_LETTER_ID,
    DEAD_LETTER_TOPIC,
    DELAY,
    DELAY_S_MAX,
    KEYS,
    RECONSUME_REASON,
    REPEAT,
    RESERVED_PROPERTIES,
    SKIPPED,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    WAIT,
    Message,
    check_tag,
)
from halfmoon.model.old_names import HintingEnum, mark_old_names

__all__ = [  # what `halfmoon.model.message` has is here, too
    "DEAD_LETTER_ID", "DEAD_LETTER_TOPIC", "DELAY", "DELAY_S_MAX", "KEYS", "RECONSUME_REASON", "REPEAT", "RESERVED_PROPERTIES",
    "SKIPPED", "TAGS", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "UNIQ_KEY", "WAIT", "ConsumeFrom", "ConsumeStatus", "ConsumeType",
    "DeadLetter", "LocalTransactionState", "Message", "MessageModel", "MessageQueue", "PullResult", "PullStatus", "Replayed",
    "SendResult", "SendStatus", "StoredMessage", "Subscription", "TransactionSendResult", "check_tag", "java_hash", "one_line",
    "split_address", "split_addresses", "subscription", "tags_of",
]  # fmt: skip


def one_line(text: str, length_max: int = REASON_LENGTH_MAX) -> str:
    """Return a text as a property can hold it: one line of printable characters, cut if it is too long."""
    shown = "".join(character if character.isprintable() else " " for character in text[: 4 * length_max])
    return " ".join(shown.split())[:length_max].rstrip()


class MessageQueue(msgspec.Struct, frozen=True, order=True):
    """One queue of a topic on one broker. Sorts by topic, broker name, queue number, as rebalancing needs it."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(slots=True, eq=False, repr=False)
class StoredMessage:
    """A message as a broker keeps it and a consumer gets it.

    ``properties`` are all of them, the protocol's own included. ``body`` is as the sender gave it when the message came through
    a consumer, and as stored (perhaps compressed, see ``sys_flag``) when a record was decoded raw. Hosts are ``ip:port``.
    One that a broker sent reads its fields from its record when they are first asked for (`halfmoon.wire.record`).
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
        """The queue of the message."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def held_bytes(self) -> int:
        """Bytes of the body as it came."""
        return len(self.body)

    def beginning(self, size_max: int) -> bytes:
        """Return the first bytes of the body. No more of a compressed one is unpacked, and nothing of it is kept."""
        return self.body[:size_max]

    def as_stored(self) -> tuple[bytes, int]:
        """Return body and ``sys_flag`` as they are stored, or as they are now where the message was unpacked already."""
        return self.body, self.sys_flag

    def note(self, properties: dict[str, str]) -> None:
        """Add properties that are not in the record. The dict is not changed, now or later."""
        self.properties.update(properties)

    def unpack_later(self, unpack: Callable[[StoredMessage, bytes, int], tuple[bytes, int]]) -> None:
        """Set a function that unpacks the body on demand: of the message, body and flags as stored, give body and flags to show."""
        self.body, self.sys_flag = unpack(self, self.body, self.sys_flag)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredMessage) and self._values() == other._values()

    def __repr__(self) -> str:
        pairs = zip(self.__match_args__, self._values(), strict=True)
        return f"StoredMessage({', '.join(f'{name}={value!r}' for name, value in pairs)})"

    def __reduce__(self) -> tuple[type[StoredMessage], tuple[Any, ...]]:
        return StoredMessage, self._values()  # copies and pickles have nothing left to read

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)


class DeadLetter(msgspec.Struct):
    """Message that a group gave up: the record in the dead-letter topic with the sender's body, and its broker's address."""

    group: str
    message: StoredMessage
    address: str

    @property
    def offset_msg_id(self) -> str:
        """The broker's id of the dead letter, by which it is shown and replayed."""
        return self.message.offset_msg_id

    @property
    def topic(self) -> str:
        """The topic it was consumed from; empty if not recorded."""
        return self.message.properties.get("RETRY_TOPIC", "")

    @property
    def origin_msg_id(self) -> str:
        """The broker's id of the message that failed first; empty if not recorded."""
        return self.message.properties.get("ORIGIN_MESSAGE_ID", "")

    @property
    def reason(self) -> str:
        """The reason why it could not be consumed, as its consumer reported last; empty if not recorded."""
        return self.message.properties.get(RECONSUME_REASON, "")

    @property
    def dead_lettered_ms(self) -> int:
        """The time when it became a dead letter, by the broker's clock."""
        return self.message.store_ms

    @property
    def tries(self) -> int | None:
        """The number of deliveries to a consumer; None: an operator skipped it, and only its member counted."""
        return None if self.reason == SKIPPED else max(1, self.message.reconsume_times)

    @property
    def replay_of(self) -> str:
        """The broker's id of the dead letter that was replayed and came to this end again; empty for none."""
        return self.message.properties.get(DEAD_LETTER_ID, "")

    def targets(self) -> list[str]:
        """Return the topics to which it usually goes: its group's retry topic, which nobody else reads, and where it came from."""
        return [f"%RETRY%{self.group}", *([self.topic] if self.topic else [])]


class Replayed(msgspec.Struct):
    """Result of a replay: its topic, whether it was done now or before (``already``), and the broker's id of the copy."""

    letter: DeadLetter
    topic: str
    offset_msg_id: str
    already: bool = False


class SendStatus(Enum, metaclass=HintingEnum):
    """Status of a send. Every one but SEND_OK means: stored, but a promise of the broker's mode was not kept in time."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(msgspec.Struct):
    """Result of a send. ``msg_id`` is the sender's id, ``offset_msg_id`` the broker's (of a batch: joined by commas)."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    recall_handle: str | None = None
    """Handle that cancels a message which waits for a point in time, see `Producer.recall`."""


class LocalTransactionState(IntEnum, metaclass=HintingEnum):
    """Outcome of a local transaction. The numbers are those of the wire; OPEN and NOT_MINE are told as UNKNOWN with a mark.

    UNKNOWN tells the broker nothing: it keeps the half message and asks again later, up to 15 times in all. OPEN says that the
    transaction is known and not over, or that it cannot be looked at just now: a Halfmoon broker asks again, for as long as half
    messages may be undecided (72 hours), and such checks are not among the 15. NOT_MINE says that this member of the group cannot
    tell, since it has no check for the topic or uses another database: a Halfmoon broker asks the next member at once, and such
    checks are not among the 15 either. Any other broker takes both for UNKNOWN.
    """

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12
    OPEN = -1
    NOT_MINE = -2

    code: int
    """The number that is sent to a broker."""


for _state in LocalTransactionState:
    _state.code = max(_state.value, 0)


class TransactionSendResult(SendResult):
    """Result of a half message, and the decision that was sent to its broker.

    ``local_error`` is what the local transaction raised; the state is UNKNOWN then.

    Differs: the original gives no ``offset_msg_id`` here.
    """

    local_state: LocalTransactionState = LocalTransactionState.UNKNOWN
    local_error: Exception | None = None


class PullStatus(Enum):
    """Outcome of a pull."""

    FOUND = 0
    NO_NEW_MSG = 19
    NO_MATCHED_MSG = 20
    OFFSET_ILLEGAL = 21


class PullResult(msgspec.Struct):
    """Result of one pull.

    ``next_offset`` is where the next pull begins; ``skipped`` are offsets of records that do not decode; ``topic_birth_ms`` is when
    the topic was made (0: not known).
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[StoredMessage]
    suggested_broker_id: int = 0
    skipped: tuple[int, ...] = ()
    topic_birth_ms: int | None = None


class MessageModel(IntEnum):
    """Whether the members of a group share the messages or each gets all."""

    BROADCASTING = 0
    CLUSTERING = 1


class ConsumeType(IntEnum):
    """Kind of a consumer, as it states in heartbeats."""

    CONSUME_ACTIVELY = 0
    CONSUME_PASSIVELY = 1
    CONSUME_POP = 2


class ConsumeFrom(IntEnum, metaclass=HintingEnum):
    """Start of a group without stored progress."""

    LAST_OFFSET = 0
    FIRST_OFFSET = 4
    TIMESTAMP = 5


class ConsumeStatus(Enum, metaclass=HintingEnum):
    """Answer of a listener about its messages."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"
    COMMIT = "COMMIT"
    """Orderly without auto commit: these are consumed, and all that was consumed since the last commit is committed."""
    ROLLBACK = "ROLLBACK"
    """Orderly without auto commit: all that was consumed since the last commit comes again, after a pause."""


class Subscription(msgspec.Struct, frozen=True):
    """Subscription of a consumer to one topic: an expression of type TAG (``*`` or tags joined by ``||``) or SQL92.

    ``version`` is when it was made, in ms: a broker keeps the newest of a group.
    """

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()
    version: int = 0


_NO_TAG = re.compile(r"[\s|&<>=!()'\",]|^\*$")
"""Pattern that no tag of a list matches. A message may have such a tag; it is asked for with SQL92: ``TAGS = 'a b'``."""


def subscription(
    topic: str, expression: str | None = "*", expression_type: str = "TAG", *, sql: str | None = None, version: int = 0
) -> Subscription:
    """Return the subscription that an expression describes. ``codes`` are the Java hashes of its tags.

    ``sql`` is an SQL92 expression, given instead of tags. Whether it parses is for the broker to say.

    Raises:
        UsageError: a tag expression with nothing but separators, or a tag with a space or an operator in it; tags and SQL92 at
            once; an empty SQL92 expression; a type that is neither, such as a class that filters.

    Follows FilterAPI.buildSubscriptionData and MessageSelector.bySql (RocketMQ 4.9.8).
    """
    _check_texts(topic, expression=expression, expression_type=expression_type, sql=sql)
    if sql is not None:
        if expression not in (None, "*") or expression_type != "TAG":
            raise UsageError("a subscription has tags or an SQL92 expression, not both")
        expression, expression_type = sql, "SQL92"
    if expression_type not in ("TAG", "SQL92"):
        raise UsageError(f"no filter is of type {expression_type[:40]!r}: give tags or SQL92; filters by a class are not supported")
    if expression_type == "SQL92" and not (expression or "").strip():
        raise UsageError("an SQL92 expression is empty")
    if expression_type != "TAG":
        return Subscription(topic, expression or "", expression_type, version=version)
    if not expression or expression == "*":
        return Subscription(topic, "*", version=version)
    tags = tags_of(expression)
    for tag in sorted(tags):
        if _NO_TAG.search(tag):
            raise UsageError(
                f"{expression[:200]!r} is not a list of tags: {tag[:80]!r} contains a space, a comma or an operator, or is '*' "
                "beside other tags. Separate tags with '||'; to filter by properties use SQL92: sql= in Python, --sql, sqlFilter"
            )
    return Subscription(topic, expression, "TAG", tags, frozenset(java_hash(tag) for tag in tags), version)


def _check_texts(topic: str, **arguments: object) -> None:
    for name, value in arguments.items():
        if not isinstance(value, str) and (value is not None or name == "expression_type"):
            raise UsageError(f"{name} of {topic!r:.60} is {value!r:.60} ({type(value).__name__}): give one text, such as 'A || B'")


def tags_of(expression: str) -> frozenset[str]:
    """Return the tags that an expression joins with ``||``, whatever is in them, as brokers take it. Raises UsageError: none."""
    tags = frozenset(tag.strip() for tag in expression.split("||")) - {""}
    if not tags:
        raise UsageError("subString split error")
    return tags


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: base 31 over UTF-16 units, 32 bits, signed."""
    value, data = 0, b"" if text.isascii() else text.encode("utf-16-be", "surrogatepass")
    for unit in text.encode() if not data else (data[i] << 8 | data[i + 1] for i in range(0, len(data), 2)):
        value = value * 31 + unit & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, ``[v6]:port`` or ``v6:port`` (split at the last colon). Raises UsageError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"not an address of the form host:port: {address!r}")
    return host.strip("[]"), int(port)


def split_addresses(text: str | Iterable[str]) -> list[str]:
    """Return the addresses of a list joined by ``;`` (or ``,``); each is checked. Raises UsageError."""
    listed = text.replace(",", ";").split(";") if isinstance(text, str) else text
    addresses = [address.strip() for address in listed if address.strip()]
    for address in addresses:
        split_address(address)
    return addresses


for _value in (StoredMessage, SendResult):
    mark_old_names(_value)
