"""Bodies and recall handles of delayed messages. Holds shapes; decides nothing.

`halfmoon.wire.bodies` gives the names of the bodies.
"""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from struct import Struct
from typing import NamedTuple

from halfmoon.errors import PeerError
from halfmoon.wire.bodies.topics import DataVersion
from halfmoon.wire.json import Body
from halfmoon.wire.table import I32, I64

_HANDLE_LENGTH_MAX = 4096
_VERSION = "v1"


class TimerOffset(Body):
    """Progress of the timer, as in ``timerOffset.json``.

    Due time and queue offset of the last delivered message, the queue offset below which none waits, and the ends, due times and
    offsets of all marks (`halfmoon.store.timer.marks`).
    """

    due_ms: I64 = -1
    offset: I64 = -1
    low: I64 = 0
    marks: list[tuple[I64, I64, I64]] = []


class TimerCheckpoint(NamedTuple):
    """Progress of the timer of a RocketMQ 5 broker: body of the reply to 60, seven numbers of 8 bytes."""

    read_ms: int
    """Messages due before, of those that lie before ``queue_offset``, are delivered."""
    timer_log_position: int = 0
    """Position in files that Halfmoon has not."""
    queue_offset: int = 0
    """Queue offset in ``rmq_sys_wheel_timer`` behind the last message that is in the wheel of the broker that says it."""
    master_queue_offset: int = 0
    """The same of its master: a slave does not read beyond."""
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0

    def encode(self) -> bytes:
        """Return the body."""
        return _CHECKPOINT.pack(*self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> TimerCheckpoint:
        """Return the content of a body; the version is 0 where it is missing. Raises PeerError."""
        if len(body) not in (_CHECKPOINT.size, _CHECKPOINT_BEFORE.size):
            raise PeerError(f"a timer checkpoint cannot have {len(body)} bytes")
        return cls(*(_CHECKPOINT if len(body) == _CHECKPOINT.size else _CHECKPOINT_BEFORE).unpack(body))


_CHECKPOINT, _CHECKPOINT_BEFORE = Struct(">7q"), Struct(">4q")


class TimerCount(Body):
    """Number of messages of one topic that wait for a point in time."""

    count: I64 = 0
    time_stamp: I64 = 0


class TimerCounts(Body):
    """Number of messages that wait for a point in time, by topic: reply of 61."""

    timing_count: dict[str, TimerCount] = {}
    data_version: DataVersion = DataVersion(state_version=0)


class DelayedMessage(Body):
    """Delayed message. ``level`` 0: with a delivery time. ``handle`` cancels it; empty: it cannot be cancelled."""

    due_ms: I64 = 0
    look_ms: I64 = 0
    """Position in the order of the list, ms: earlier than ``due_ms`` if the broker stores the message again before."""
    level: I32 = 0
    queue_offset: I64 = 0
    topic: str = ""
    queue_id: I32 = 0
    msg_id: str = ""
    offset_msg_id: str = ""
    tag: str = ""
    keys: str = ""
    size_bytes: I32 = 0
    born_ms: I64 = 0
    parked_ms: I64 = 0
    handle: str = ""


class DelayedMessages(Body):
    """Page of delayed messages, the next one first. Counts are of the whole broker.

    ``more``: others may follow ``last_…``, where the broker stopped; with a topic, possibly before it found any.
    """

    now_ms: I64 = 0
    by_level: dict[int, int] = {}
    """Number of waiting messages by level; 0: with a delivery time."""
    due_within: dict[int, int] = {}
    """Number of messages due within a number of seconds; only on the first page."""
    more: bool = False
    last_ms: I64 = -1
    last_level: I32 = -1
    last_offset: I64 = -1
    messages: list[DelayedMessage] = []


class RecallHandle(NamedTuple):
    """Handle of a message that can be recalled. ``deliver_ms`` is a millisecond after its delivery time, as in 5.x."""

    topic: str
    broker_name: str
    deliver_ms: int
    key: str


def recall_handle(topic: str, broker_name: str, deliver_ms: int, key: str) -> str:
    """Return the handle of a message with a delivery time. Follows RecallMessageHandle (5.3.3)."""
    return urlsafe_b64encode(f"{_VERSION} {topic} {broker_name} {deliver_ms + 1} {key}".encode()).decode()


def parse_recall_handle(text: str) -> RecallHandle | None:
    """Return the content of a handle; None if it is not valid."""
    if not text or len(text) > _HANDLE_LENGTH_MAX:
        return None
    try:
        fields = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)).decode().split(" ")
    except (Error, ValueError):
        return None
    if len(fields) != 5 or fields[0] != _VERSION or not fields[3].isdecimal() or len(fields[3]) > 18 or not all(fields):
        return None
    return RecallHandle(fields[1], fields[2], int(fields[3]), fields[4])
