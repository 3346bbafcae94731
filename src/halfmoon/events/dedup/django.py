"""No effect twice, in a Django database: the consumer's function runs inside `atomic`, and so does the note that it did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from halfmoon.events.dedup.ledger import TransactionLedger
from halfmoon.events.django import atomic, provider
from halfmoon.events.django.databases import fresh_connections


def ledger(using: str) -> TransactionLedger:
    """Return the ledger of one alias of ``DATABASES``: the function uses models as usual, and gets the connection."""
    return TransactionLedger(provider(using), lambda: _begin(using))


@contextmanager
def _begin(using: str) -> Iterator[Any]:
    with fresh_connections(), atomic(using):
        yield connections[using]
