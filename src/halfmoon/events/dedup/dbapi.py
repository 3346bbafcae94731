"""No effect twice, with any driver of PEP 249: the function gets the connection in whose transaction the note was made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from halfmoon.events.dbapi import DbapiProvider, ProxyConnection
from halfmoon.events.dbapi.driver import autocommits


@contextmanager
def begin(database: DbapiProvider) -> Iterator[ProxyConnection]:
    """Open a connection for a block: committed at its end, and closed. The function must not commit by itself."""
    with closing(database.connect()) as connection:
        explicit = autocommits(connection, database.dialect)
        if explicit:
            _execute(connection, "BEGIN")
        yield connection
        if explicit:
            _execute(connection, "COMMIT")
        else:
            connection.commit()


def _execute(connection: ProxyConnection, statement: str) -> None:
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement)
