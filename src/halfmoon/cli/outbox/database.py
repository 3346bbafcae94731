"""Opens the database of an outbox for a command. What goes wrong comes out as one line, and never with a password."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy

from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.events.databases.database import Provider
from halfmoon.events.sqlalchemy import provider


class DatabaseFailed(HalfmoonError):
    """The database could not be reached, or has no outbox. The text holds no password."""


@contextmanager
def opened(url: str) -> Iterator[Provider]:
    """Give the provider of a database for a block. Raises UsageError for an address that is none, DatabaseFailed in the block."""
    try:
        place = sqlalchemy.make_url(url)
        engine = sqlalchemy.create_engine(place, hide_parameters=True)
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as exc:
        raise UsageError(f"the database's address: {_first_line(exc, url, '')}") from None
    try:
        yield provider(engine)
    except HalfmoonError:
        raise
    except Exception as exc:
        raise DatabaseFailed(f"{place.render_as_string()}: {_first_line(exc, url, place.password or '')}") from None
    finally:
        engine.dispose()


def _first_line(error: BaseException, url: str, password: object) -> str:
    text = f"{type(error).__name__}: {error}".replace(url, "…").splitlines()[0]
    return text.replace(str(password), "…") if password else text
