"""Event: a fact, named by topic and event code. A plain value; knows no broker and no database.

It is built with an id, given a payload and published; consumers get one of the same shape.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from halfmoon.errors import UsageError
from halfmoon.events.errors import NameRefused
from halfmoon.events.tables import IDENTITY
from halfmoon.model import DELAY_S_MAX, TIMER_DELAY_MS, TIMER_DELIVER_MS, Message

NAME_LENGTH_MAX = 127
"""Characters of a topic, group or event code, as brokers allow for topics."""

BROKERS_TOPICS = frozenset({
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC", "SELF_TEST_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC", "BenchmarkTest", "TBW102",
})  # fmt: skip
"""Topics that belong to brokers, besides those that begin with ``rmq_sys_``: no events go there. Follows TopicValidator (5.3.3)."""

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_CODE = re.compile(r"[a-zA-Z0-9_.:-]+")
_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")


@dataclass(kw_only=True, slots=True)
class Event:
    """Something that happened.

    ``topic`` and ``code`` together are its type (``TP_ORDER``, ``EC_PAID`` by convention). ``payload`` is anything that a codec
    carries; it is fixed when the event is published, later changes do not travel. ``headers`` are texts that travel beside it.
    ``key`` is a business key, by which `halfmoon msg find` finds it; plain events of one key keep their order. ``transactional``
    events are seen if and only if the local transaction commits; None is the publisher's default. ``raise_on_failure``: whether
    `publish` raises when the event could not be sent; None is the publisher's own. ``local`` is None until the event is
    published, then False.

    A consumer finds in it True for ``transactional`` where a half message brought it, else None (the outbox leaves no trace), and
    ``published_ms``, when it was published by the publisher's clock, ``group``, whose publisher it was, and ``version``, that of
    the payload's form.
    """

    id: str
    topic: str
    code: str
    payload: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    key: str = ""
    transactional: bool | None = None
    raise_on_failure: bool | None = None
    version: int = 1
    content_type: str = ""
    group: str = ""
    published_ms: int = 0
    local: bool | None = None
    deliver_at_ms: int = 0
    """When consumers are to see it, ms since the epoch; 0: at once. A consumer always finds 0."""
    attempts: int = field(default=0, compare=False, repr=False)
    """Attempts to publish it that failed so far. The next one, also by another `publish`, says that it is a repeat."""

    @property
    def type(self) -> tuple[str, str]:
        """Its message type: topic and event code."""
        return self.topic, self.code

    def __str__(self) -> str:
        return f"event {self.id} ({self.topic}/{self.code})"


def check_name(what: str, name: object) -> str:
    """Return a topic's or group's name (``what`` says which) if a broker takes it. Raises NameRefused."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise NameRefused(f"{what} {name!r:.60}: use 1 to {NAME_LENGTH_MAX} letters, digits, '_', '-', '%' or '|'")
    if what == "topic" and (name in BROKERS_TOPICS or name.startswith("rmq_sys_")):
        raise NameRefused(f"topic {name!r} belongs to brokers: use one of your own")
    return name


def check_code(code: object) -> str:
    """Return an event code if it can be a tag: no blank, no ``|``. Raises NameRefused."""
    if code is None:
        raise NameRefused("an event needs a code beside its topic, such as publish('TP_ORDER', 'EC_PAID', payload)")
    if not isinstance(code, str) or not _CODE.fullmatch(code) or len(code) > NAME_LENGTH_MAX:
        raise NameRefused(f"event code {code!r:.60}: use 1 to {NAME_LENGTH_MAX} letters, digits, '_', '-', '.' or ':'")
    return code


def check_flag(name: str, value: object) -> None:
    """Raise UsageError unless the value of an argument is True or False."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False, not {value!r:.40}")


def check_whole(name: str, value: object, low: int, high: int) -> int:
    """Return the value of an argument if it is an int between two bounds, both included. Raises UsageError."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise UsageError(f"{name} must be a whole number from {low} to {high}, not {value!r:.40}")
    return value


def check_id(event_id: object) -> str:
    """Return an event's id if it can be a message's id and the key of a row. Raises NameRefused."""
    if not isinstance(event_id, str) or not _ID.fullmatch(event_id) or event_id == IDENTITY:
        raise NameRefused(
            f"event id {event_id!r:.80}: let the publisher make it, or use 1 to 64 letters, digits, '_', '-', '.', ':'"
        )
    return event_id


def due_ms(delay: float | timedelta | None, deliver_at: datetime | int | None) -> int | None:
    """Return when an event is to be delivered, ms since the epoch; None where nothing was said. Raises UsageError."""
    if delay is None and deliver_at is None:
        return None
    now_ms = time.time_ns() // 1_000_000
    try:
        message = Message("", b"", delay=delay, deliver_at=deliver_at)
        message.check_types()
        asked = message.wire_properties()
        due = int(asked[TIMER_DELIVER_MS]) if TIMER_DELIVER_MS in asked else now_ms + int(asked[TIMER_DELAY_MS])
    except (TypeError, ValueError) as exc:
        raise UsageError(f"delay is seconds or a timedelta, deliver_at ms since the epoch or an aware datetime: {exc}") from None
    if due > now_ms + DELAY_S_MAX * 1000:
        raise UsageError(f"deliver_at is at most {DELAY_S_MAX} seconds from now, as brokers allow, not {deliver_at}")
    return due
