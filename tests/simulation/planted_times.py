"""Parts that take the date for a steady time, planted into a cluster: what they time ends when a clock is set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from halfmoon.broker.request import Request
from halfmoon.instant import Instant, Steady
from halfmoon.testing.host import STEADY_BEGINS_NS


def mistaken(now: Instant) -> Instant:
    """Return an instant whose steady time is the date, counted from where steady times begin."""
    return Instant(Steady(now.date - STEADY_BEGINS_NS // 1_000_000), now.date)


def plant(monkeypatch: pytest.MonkeyPatch, part: type, *methods: str) -> None:
    """Have methods of a class mistake the date for the steady time, and `due` answer in it."""
    for name in methods:
        monkeypatch.setattr(part, name, due_of(getattr(part, name)) if name == "due" else misled(getattr(part, name)))


def misled(method: Callable[..., Any]) -> Callable[..., Any]:
    def mislead(given: Any) -> Any:
        if isinstance(given, Instant):
            return mistaken(given)
        return msgspec.structs.replace(given, now=mistaken(given.now)) if isinstance(given, Request) else given

    return lambda *given, **named: method(*map(mislead, given), **{name: mislead(value) for name, value in named.items()})


def due_of(method: Callable[..., Any]) -> Callable[..., Any]:
    def due(self: Any, now: Instant) -> Steady | None:
        at = method(self, mistaken(now))
        return None if at is None else now.steady + (at - mistaken(now).steady)

    return due
