"""Times, spans, rates and messages, as people write them, and as commands and the console show them to people and in JSON."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from halfmoon.model import MessageQueue, StoredMessage

TIME_MAX_MS = 253_402_300_799_999
"""Last millisecond of the year 9999."""

TIME_FORMS = "an age (10s, 5m, 2h, 3d), ISO 8601 (2026-01-31T08:00:00Z), or ms since the epoch"
EPOCH_MS_MIN = 100_000_000_000
"""Least number that is taken for milliseconds since the epoch, a day of 1973. A smaller one means something else."""
_SPAN = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def read_span(text: str) -> int | None:
    """Return the milliseconds of a span such as ``300ms``, ``10s`` or ``3d``; None: the text is not a span."""
    found = _SPAN.fullmatch(text.strip())
    return None if found is None else int(found[1]) * _UNITS_MS[found[2]]


def read_time(text: str, now_ms: int) -> int:
    """Return milliseconds since the epoch for an age (``5m`` ago), an ISO 8601 time (UTC unless it says otherwise) or a number.

    Raises ValueError, in words: it is none of them, or a number that may be an age or a time in seconds; 0 is the beginning.
    """
    text = text.strip()
    if (age_ms := read_span(text)) is not None:
        return max(0, now_ms - age_ms)
    if text.isdecimal() and len(text) <= 15:
        if 0 < int(text) < EPOCH_MS_MIN:
            raise ValueError(f"{text}: {text}s or {text}ms ago, or a time? Give {TIME_FORMS}")
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time: give {TIME_FORMS}") from None


def time_text(ms: int) -> str:
    """Return a time of milliseconds since the epoch as ISO 8601 in UTC, empty for none; one that no calendar has as its number."""
    if ms <= 0:
        return ""
    if ms > TIME_MAX_MS:
        return f"{ms} ms"
    whole = datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)
    return whole.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span_text(ms: int) -> str:
    """Return a span of time for people: ``0.4s``, ``12.3s``, ``5m10s``, ``2h03m``, ``3d04h``."""
    tenths, whole = max(0, ms) // 100, max(0, ms) // 1000
    if whole < 60:
        return f"{tenths / 10:.1f}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole // 60 % 60:02}m" if whole < 86_400 else f"{whole // 86_400}d{whole // 3600 % 24:02}h"


def count_text(count: int, singular: str = "message", plural: str = "") -> str:
    """Return a count with its noun: ``1 message``, ``1,200 messages``. ``plural`` is needed where it does not end in s alone."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def wait_text(count: int) -> str:
    """Return how many messages wait, as words."""
    return f"{count_text(count)} {'waits' if count == 1 else 'wait'}"


def tries_text(count: int) -> str:
    """Return how often something was tried: ``1 try``, ``235 tries``."""
    return count_text(count, "try", "tries")


def skip_command(group: str, queue: MessageQueue, offset: int, nameserver: str = "") -> str:
    """Return the command that skips the message at which a group stands in a queue."""
    words = ["halfmoon", "group", "skip", group, queue.topic, f"{queue.broker_name}/{queue.queue_id}", "--offset", str(offset)]
    return shlex.join([*words, *(["--nameserver", nameserver] if nameserver else [])])


def rate_text(per_second: float) -> str:
    """Return a rate for people: ``1,200``, ``3.5``, ``0.02``. A message a minute is not nothing."""
    return f"{per_second:,.0f}" if per_second >= 9.95 else f"{per_second:.2g}"


def size_text(size_bytes: int) -> str:
    """Return a number of bytes for people: ``512 B``, ``3.4 KiB``, ``120 GiB``."""
    size, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1023.5 or unit == "PiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.1f} {unit}"


def message_facts(message: StoredMessage) -> dict[str, Any]:
    """Return the facts of a message for JSON, without its body."""
    return {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": message.properties,
        "born_ms": message.born_ms,
        "store_ms": message.store_ms,
        "reconsume_times": message.reconsume_times,
    }


def body_facts(body: bytes) -> dict[str, Any]:
    """Return the facts of a body for JSON: ``body`` is its text; if it is not UTF-8, ``body`` is null and ``body_hex`` has it."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body": None, "body_hex": body.hex()}


def facts_of(value: Any) -> Any:
    """Return the facts of a struct for JSON: its fields by their names in Python, not those of the wire; values inside likewise."""
    if isinstance(value, msgspec.Struct):
        return {name: facts_of(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list):
        return [facts_of(item) for item in value]
    return value


def share_text(share: float | None) -> str:
    """Return a share in percent, ``-`` for none."""
    return "-" if share is None else f"{share:.0%}"


NO_BROKER = "no broker is registered with the name server"
NO_BROKER_REMEDY = "start one, or look at its log and its --nameserver; halfmoon doctor says what is wrong"


def no_master_text(broker: str, waiting: Sequence[str]) -> str:
    """Return that a broker has no master, with the addresses of its other members."""
    return f"{broker} has no master; {', '.join(waiting)} {'follows and waits' if len(waiting) == 1 else 'follow and wait'}"


def absent_text(brokers: Mapping[str, Mapping[int, str]]) -> str:
    """Return why no broker has a master: which members wait, or that no broker is registered. ``brokers``: addresses by id."""
    waiting = [no_master_text(name, [*addresses.values()]) for name, addresses in sorted(brokers.items()) if addresses]
    return "; ".join(waiting) or f"{NO_BROKER}: {NO_BROKER_REMEDY}"
