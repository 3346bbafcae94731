"""No effect twice, in a Django database: the consumer's function runs inside `atomic`, and so does the note that it did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import close_old_connections, connections

from halfmoon.events.databases.database import Provider
from halfmoon.events.dedup.ledger import ConsumedKey, ConsumedRows
from halfmoon.events.django import atomic, provider


class DjangoLedger:
    """Lends transactions of one alias of ``DATABASES``: the function uses models as usual, and gets the connection."""

    is_async = False

    def __init__(self, using: str) -> None:
        self.provider: Provider = provider(using)
        self._using = using
        self._notes = ConsumedRows()

    @contextmanager
    def lend(self, note: ConsumedKey) -> Iterator[Any]:
        """Lend the connection of this thread, inside `atomic`. Connections that are too old are closed, before and after."""
        close_old_connections()
        try:
            with atomic(self._using):
                transaction = self.provider.current()
                assert transaction is not None, "atomic() has begun one"
                self._notes.write(self.provider.rows(transaction), note)
                yield connections[self._using]
        finally:
            close_old_connections()
