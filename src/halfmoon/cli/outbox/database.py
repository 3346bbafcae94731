"""Database of an outbox for a command. Its errors are one line, and never contain a password."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, quote_plus

import sqlalchemy
from sqlalchemy.engine import URL, ExceptionContext

from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.events.databases.database import Provider
from halfmoon.events.sqlalchemy import provider

_SECRET_NAME = re.compile(r"pass|pwd|secret|token|key|credential", re.IGNORECASE)
_SWITCH = re.compile(r"\d+|true|false|yes|no|on|off", re.IGNORECASE)
"""Values of a parameter of an address that are not secret, unless its name says so."""
_ASSIGNED = re.compile(r"((?:passw(?:or)?d|pwd)['\"]?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s;&,)}]+)", re.IGNORECASE)
"""Pattern of a password in a text of a driver, such as ``host=db password=…`` or ``PWD=…;``."""


class DatabaseFailed(HalfmoonError):
    """The database could not be reached, or has no outbox. The text holds no password."""


@contextmanager
def opened(url: str, schema: str = "") -> Iterator[Provider]:
    """Give the provider of a database, and of a schema of it, for a block.

    Raises UsageError for an address that is none, DatabaseFailed in the block.
    """
    secrets = secrets_of(url)
    try:
        place = sqlalchemy.make_url(url)
        secrets |= _secrets_of(place)
        engine = sqlalchemy.create_engine(place, hide_parameters=True)
    except (sqlalchemy.exc.SQLAlchemyError, ImportError, TypeError, ValueError) as exc:
        raise UsageError(f"the database's address: {_first_line(exc, secrets)}") from None

    @sqlalchemy.event.listens_for(engine, "handle_error")
    def mask_error(context: ExceptionContext) -> None:
        # at the source: a relay logs such texts from a thread of its own, and errors of ours quote them
        for error in (context.original_exception, context.sqlalchemy_exception):
            if error is not None:
                error.args = tuple(masked(arg, secrets) if isinstance(arg, str) else arg for arg in error.args)

    try:
        yield provider(engine, schema=schema)
    except HalfmoonError:
        raise
    except Exception as exc:
        raise DatabaseFailed(f"{shown(place, url)}: {_first_line(exc, secrets)}") from None
    finally:
        engine.dispose()


def secrets_of(url: str) -> set[str]:
    """Return what an address may give away as it is written: itself, and what stands between the first colon and the last ``@``.

    An ``@`` or ``:`` in a password should be quoted. Where it is not, the address is split at the wrong place, and errors quote
    each part of the password by itself.
    """
    user_info = url.partition("?")[0].partition("://")[2].rpartition("@")[0]
    return {url, *re.split("[@:/]", user_info.partition(":")[2])}


def _secrets_of(place: URL) -> set[str]:
    """Return the password of an address, and the values of its parameters that may be one, as drivers may quote them."""
    values = {str(place.password or "")}
    for name, settings in place.normalized_query.items():
        values |= {value for value in settings if _SECRET_NAME.search(name) or not _SWITCH.fullmatch(value)}
    return {form for value in values for form in (value, quote(value), quote_plus(value), repr(value)[1:-1])}


def shown(place: URL, url: str) -> str:
    """Return an address without its parameters and password; only its kind if it is unclear where the password begins."""
    if url.partition("?")[0].count("@") > 1:
        return f"{place.drivername}://…"
    return place.set(query={}).render_as_string()


def _first_line(error: BaseException, secrets: set[str]) -> str:
    return (masked(f"{type(error).__name__}: {error}", secrets).splitlines() or [""])[0]


def masked(text: str, secrets: set[str]) -> str:
    """Return a text with … for each secret."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):  # the longest first: one may contain another
        text = text.replace(secret, "…")
    return _ASSIGNED.sub(r"\1…", text)
