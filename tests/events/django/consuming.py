"""Consumers of these tests: they note what they are given, and whether their database connection is a fresh one."""

from __future__ import annotations

from typing import Any

from django.db import connection

from halfmoon.events import Consumers, Event, on

__all__ = ["Consumers", "note", "seen"]

seen: list[tuple[Any, bool]] = []


@on("S_notes", "TP_ORDER", "EC_PAID")
def note(event: Event) -> None:
    """Note an event."""
    seen.append((event.payload, connection.connection is None))
