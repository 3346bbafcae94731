"""Connections that receive notifications of PostgreSQL: each the driver's own, in no pool. Starts no thread and waits for nothing.

A notification is a reason to look, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

Run = Callable[[str], Sequence[Sequence[Any]]]
"""Runs a statement and returns its rows."""


class CannotListen(Exception):
    """Notifications are not available from this database, or with this driver. The text says why."""


class ListeningConnection:
    """A connection of psycopg or psycopg2, blocking or async. Used by one thread.

    ``run`` runs a statement on it, committed by itself, and returns its rows; ``close`` closes it. Raises CannotListen for another
    driver.
    """

    def __init__(self, driver: Any, run: Run, close: Callable[[], None]) -> None:
        if not self.knows(driver):
            close()
            raise CannotListen(f"the driver {type(driver).__module__.partition('.')[0]} is not known to receive notifications")
        self.driver, self.run, self.close = driver, run, close

    @staticmethod
    def knows(driver: Any) -> bool:
        """Return whether a connection is one of these drivers."""
        return callable(getattr(driver, "fileno", None)) and hasattr(driver, "notifies")

    @property
    def backend_pid(self) -> int:
        """Number of the server's process, as the driver got it when it connected; poolers send a number of their own."""
        return int(self.driver.info.backend_pid)

    def take(self) -> None:
        """Take in the notifications that have come, without asking the server. Raises what the driver raises at its end."""
        if (low_level := getattr(self.driver, "pgconn", None)) is not None:  # psycopg's
            low_level.consume_input()
            while low_level.notifies():
                pass
        else:
            self.driver.poll()
            self.driver.notifies.clear()  # psycopg2 would keep them

    def listen(self, channel: str, nudge: Callable[[], None]) -> int | None:
        """Listen to a channel; returns the file descriptor that becomes readable when a notification comes.

        None: ``nudge`` is called then, in another thread, and when the connection ends.
        """
        if callable(add := getattr(self.driver, "add_notify_handler", None)):  # psycopg would keep what nobody handles
            add(lambda _: None)
        self.run(f'LISTEN "{channel}"')
        return int(self.driver.fileno())


def rows_of(connection: Any, statement: str) -> Sequence[Sequence[Any]]:
    """Run a statement on a connection of PEP 249 and return its rows."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


def blocking(driver: Any) -> ListeningConnection:
    """Return the listening side of a blocking connection that was opened for it. Raises CannotListen."""

    def close() -> None:
        with suppress(Exception):
            driver.close()

    made = ListeningConnection(driver, partial(rows_of, driver), close)
    try:
        driver.commit()  # whoever opened it may have run a statement
        driver.autocommit = True
    except BaseException:
        close()
        raise
    return made
