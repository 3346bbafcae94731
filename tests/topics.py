"""Topics at real brokers: a new one for a test."""

from __future__ import annotations

from itertools import count

from halfmoon import Admin

_NUMBERS = count()


def new_topic(nameserver: str, *, queue_count: int = 1) -> str:
    """Create a topic that no other test has."""
    name = f"topic_{next(_NUMBERS)}"
    with Admin(nameserver=nameserver) as admin:
        admin.create_topic(name, queue_count=queue_count)
    return name
