"""No effect twice, with any driver of PEP 249: the function gets the connection in whose transaction the note was made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from halfmoon.events.databases.database import Provider
from halfmoon.events.dbapi import DbapiProvider, ProxyConnection
from halfmoon.events.dbapi.driver import autocommits
from halfmoon.events.dedup.ledger import ConsumedKey, ConsumedRows


class ConnectionLedger:
    """Lends connections of a `DbapiProvider`: one for each event, closed after it. The function must not commit by itself."""

    is_async = False

    def __init__(self, provider: DbapiProvider) -> None:
        self.provider: Provider = provider
        self._database = provider
        self._notes = ConsumedRows()

    @contextmanager
    def lend(self, note: ConsumedKey) -> Iterator[ProxyConnection]:
        """Lend a connection whose transaction has begun; without a commit at the end, closing it rolls back."""
        connection = self._database.connect()
        try:
            explicit = autocommits(connection, self._database.dialect)
            _execute(connection, "BEGIN" if explicit else "SELECT 1")
            transaction = self._database.current(connection)
            assert transaction is not None, "it has begun"
            self._notes.write(self._database.rows(transaction), note)
            yield connection
            if explicit:
                _execute(connection, "COMMIT")
            else:
                connection.commit()
        finally:
            connection.close()


def _execute(connection: ProxyConnection, statement: str) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
    finally:
        cursor.close()
