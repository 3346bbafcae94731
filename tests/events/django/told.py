"""What the tests of transactions share: both kinds of blocks, and a synchronization that notes what it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from halfmoon.events.django import atomic, provider
from halfmoon.events.transaction import Status, Synchronization

BLOCKS = pytest.mark.parametrize("block", [transaction.atomic, atomic], ids=["plain", "ours"])
Block = Callable[..., Any]
fails = pytest.raises
"""Around transactions: how they end is what a test looks at."""


class Told(Synchronization):
    """Notes what it is told."""

    def __init__(self, name: str = "", notes: list[str] | None = None) -> None:
        self.name, self.notes = name, notes if notes is not None else []

    def before_commit(self) -> None:
        """Note it."""
        self.notes.append(f"{self.name}before")

    def after_commit(self) -> None:
        """Note it."""
        self.notes.append(f"{self.name}after")

    def after_completion(self, status: Status) -> None:
        """Note it."""
        self.notes.append(f"{self.name}{status.value}")


def follow(using: str, name: str = "", notes: list[str] | None = None) -> Told:
    """Register a synchronization with the transaction that runs."""
    told = Told(name, notes)
    found = provider(using).current()
    assert found is not None
    found.register(told)
    return told
