"""Search for messages in one line: an id, a key, a place or a time, recognised by its form or named before a colon. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue
from halfmoon.shown.texts import read_span, read_time, time_text

FORMS = "an id, a key, BROKER/QUEUE@OFFSET, an age (10m, 2h) or a time (2026-01-31T08:00)"
QUEUE_MAX = 2**31 - 1

_NAMED = re.compile(r"(id|key|place|since):\s*(\S.*)", re.DOTALL)
_SINCE = re.compile(r"(.*\S)\s+since:\s*(\S+)", re.DOTALL)
_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")
_PLACE = re.compile(r"(?:(?P<topic>[^/\s]+)/)?(?P<broker>[^/\s@]+)/(?P<queue>\d{1,10})(?:@(?P<offset>\d{1,19}))?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d.*)?")


class Search(NamedTuple):
    """Meaning of a search. ``kind`` is newest, id, key, place or since.

    ``text``: the id or key; ``since_ms``: for a time, and with a key where one was given. ``offset``: -1, the newest of the queue.
    """

    kind: str
    topic: str
    text: str = ""
    queue: MessageQueue | None = None
    offset: int = -1
    since_ms: int | None = None

    def meaning(self) -> str:
        """Return in words what is searched for."""
        since = f", stored since {time_text(self.since_ms)}" if self.since_ms is not None else ""
        if self.kind == "place" and self.queue is not None:
            place = f"{self.queue.broker_name}/{self.queue.queue_id}"
            return f"Queue {place} from offset {self.offset:,}" if self.offset >= 0 else f"Newest messages of queue {place}"
        texts = {"newest": "Newest messages", "id": f"Id {self.text}", "key": f"Key {self.text}{since}"}
        return texts.get(self.kind, f"Messages{since.removeprefix(',')}")


def read_search(text: str, topic: str, now_ms: int) -> Search:
    """Return the meaning of a search in a topic, which a place may name instead. Raises UsageError."""
    text, since_ms = text.strip(), None
    if found := _SINCE.fullmatch(text):
        text, since_ms = found[1], _time(found[2], now_ms)
    kind, text = named.groups() if (named := _NAMED.fullmatch(text)) else (_kind(text), text)
    if kind == "since":
        return Search("since", topic, since_ms=_time(text, now_ms))
    if kind != "place":
        return Search(kind, topic, text, since_ms=since_ms)
    place = _PLACE.fullmatch(text)
    if place is None or int(place["queue"]) > QUEUE_MAX:
        raise UsageError(f"{text} is not a place: give BROKER/QUEUE@OFFSET, or TOPIC/BROKER/QUEUE@OFFSET")
    topic = place["topic"] or topic
    return Search(
        "place", topic, queue=MessageQueue(topic, place["broker"], int(place["queue"])), offset=int(place["offset"] or -1)
    )


def _kind(text: str) -> str:
    if not text:
        return "newest"
    if _ID.fullmatch(text):
        return "id"
    if _PLACE.fullmatch(text):
        return "place"
    return "since" if read_span(text) is not None or _is_date(text) else "key"


def _is_date(text: str) -> bool:
    try:
        return _DATE.fullmatch(text) is not None and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def _time(text: str, now_ms: int) -> int:
    try:
        return max(0, read_time(text, now_ms))
    except ValueError as exc:
        raise UsageError(f"since: {exc}") from None
