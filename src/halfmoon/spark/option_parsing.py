"""Parsers of options: numbers, sizes, times, offsets. Each returns a value, or raises ValueError with the end of a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from halfmoon.data.queue_offsets import QueueOffsets

_SIZES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20}
_SIZES |= {"g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30}
_TIMES = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_MEASURE = re.compile(r"(\d{1,15})\s*([a-z]*)", re.IGNORECASE)
_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")


def text(value: str) -> str:
    """Return the text without blanks around it; it must not be empty."""
    if not value.strip():
        raise ValueError("is empty")
    return value.strip()


def flag(value: str) -> bool:
    """Return true or false."""
    if (word := value.strip().lower()) not in ("true", "false"):
        raise ValueError("must be true or false")
    return word == "true"


def count(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers of [low, high]."""

    def read(value: str) -> int:
        if not re.fullmatch(r"\d{1,18}", value.strip()) or not low <= int(value) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(value)

    return read


@dataclass(frozen=True)
class Measure:
    """Parses numbers with a unit, such as ``4MiB`` or ``30s``, to ``unit`` (bytes or ms), within [low, high]."""

    unit: str
    factors: dict[str, int]
    low: int
    high: int
    examples: str

    def __call__(self, value: str) -> int:
        """Return the number of bytes or ms."""
        match = _MEASURE.fullmatch(value.strip())
        factor = self.factors.get(match[2].lower()) if match else None
        if match is None or factor is None:
            raise ValueError(f"must be {self.examples}")
        if not self.low <= int(match[1]) * factor <= self.high:
            raise ValueError(f"must be between {self.low} and {self.high} {self.unit}")
        return int(match[1]) * factor


def size(low: int, high: int) -> Measure:
    """Return a parser of sizes in bytes, such as ``4MiB`` or ``65536``; k, m and g are powers of 1024."""
    return Measure("bytes", _SIZES, low, high, "a size such as 65536, 512k or 4m")


def duration(low: int, high: int) -> Measure:
    """Return a parser of durations in ms, such as ``30s``, ``15m`` or ``250`` (ms)."""
    return Measure("ms", _TIMES, low, high, "a duration such as 250ms, 30s or 15m")


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser of one of some words."""

    def read(value: str) -> str:
        if (word := value.strip().lower()) not in words:
            raise ValueError(f"must be {' or '.join(words)}")
        return word

    return read


def place(value: str) -> str:
    """Return ``master``, or ``files:`` and a directory as an absolute path."""
    word = value.strip()
    if word.lower() == "master":
        return "master"
    if not word.startswith("files:/"):
        raise ValueError("must be master or files:/DIR with an absolute path")
    return word


def names(value: str) -> tuple[str, ...]:
    """Return the topics of a comma list, in its order, each once."""
    topics = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not topics:
        raise ValueError("names nothing")
    for name in topics:
        if not _NAME.fullmatch(name):
            raise ValueError(f"has {name!r}, which cannot be the name of a topic")
    return topics


def words(value: str) -> tuple[str, ...]:
    """Return the words of a comma list, in its order."""
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise ValueError("names nothing")
    if len(set(names)) < len(names):
        raise ValueError("names something twice")
    return names


def pattern(value: str) -> str:
    """Return a regular expression that compiles; whole names of topics must match it."""
    try:
        re.compile(value)
    except re.error as exc:
        raise ValueError(f"is not a regular expression: {exc}") from None
    return value


def moment(value: str) -> int:
    """Return a point in time as ms since the epoch, from such a number or from ISO 8601 with a time zone."""
    value = value.strip()
    if re.fullmatch(r"\d{1,15}", value):
        return int(value)
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("must be ms since the epoch, or like 2026-01-31T12:00:00+00:00") from None
    if at.tzinfo is None:
        raise ValueError("needs a time zone, such as +00:00 or Z at its end")
    return int(at.timestamp() * 1000)


def queues(value: str) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return JSON topic -> broker -> [queue, …]."""
    shape = 'must be JSON such as {"orders": {"broker-a": [0, 1]}}'
    return {
        topic: {broker: _queue_list(numbers, shape) for broker, numbers in _object(brokers, shape).items()}
        for topic, brokers in _object(_json(value, shape), shape).items()
    }


def _queue_list(numbers: Any, shape: str) -> tuple[int, ...]:
    if not isinstance(numbers, list) or not numbers or not all(_whole(number) and number >= 0 for number in numbers):
        raise ValueError(shape)
    return tuple(sorted(set(numbers)))


def position(*keywords: str) -> Callable[[str], str | QueueOffsets]:
    """Return a parser of a keyword, or of JSON topic -> broker -> queue -> offset (-2: earliest, -1: latest)."""

    def read(value: str) -> str | QueueOffsets:
        if (word := value.strip().lower()) in keywords:
            return word
        shape = f'must be {", ".join(keywords)}, or JSON such as {{"orders": {{"broker-a": {{"0": 17}}}}}}'
        return {
            topic: {
                broker: {_queue_number(number, shape): _offset(offset, shape) for number, offset in _object(offsets, shape).items()}
                for broker, offsets in _object(brokers, shape).items()
            }
            for topic, brokers in _object(_json(value, shape), shape).items()
        }

    return read


def _json(value: str, shape: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError(shape) from None


def _object(value: Any, shape: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise ValueError(shape)
    return value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _queue_number(text: str, shape: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError(shape)
    return int(text)


def _offset(value: Any, shape: str) -> int:
    if not _whole(value) or not -2 <= value < 1 << 63:
        raise ValueError(shape)
    return int(value)
