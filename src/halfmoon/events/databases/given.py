"""Descriptions of things that were given where a database, or a session of one, is wanted, for errors. Imports no library."""

from __future__ import annotations

import inspect
from types import ModuleType

from halfmoon.errors import UsageError

_SESSION = "it is one session: give the sessionmaker that makes them here, and the session to publish(…, session=session)"
_CONNECTION = "it is one connection: give its engine here, and the connection to publish(…, session=connection)"
_DRIVER = (
    "connections of a driver go by a provider: halfmoon.events.dbapi.provider(connect), where connect() opens one, or that of "
    "halfmoon.events.aio for asyncio"
)
_ADDRESS = "it is an address: give an engine, create_engine(…), or a sessionmaker of one"
_REMEDIES = {
    "Session": _SESSION,
    "AsyncSession": _SESSION,
    "Connection": _CONNECTION,
    "AsyncConnection": _CONNECTION,
    "URL": _ADDRESS,
}
"""By name of a class of SQLAlchemy: what is wrong with an object of it where a database is wanted, and what to give."""


def described(given: object) -> str:
    """Return the kind of a thing as words, such as *an Engine of sqlalchemy*. Never its value, which may have a password."""
    if isinstance(given, ModuleType):
        return f"the module {given.__name__}"
    if isinstance(given, str):
        return f"the text {given!r:.60}" if given.isidentifier() else "a text"
    if inspect.isroutine(given):
        return "a function"
    kind = given if isinstance(given, type) else type(given)
    library = kind.__module__.partition(".")[0]
    article = "the class" if kind is given else "an" if kind.__name__[0] in "AEIOaeio" else "a"
    return f"{article} {kind.__name__}" + (f" of {library}" if library not in ("builtins", "__main__") else "")


def remedy_of(given: object) -> str:
    """Return what is wrong with a thing where a database is wanted, and what to give; empty where nothing is known of it."""
    if isinstance(given, str):
        if given.isidentifier():
            return "the alias of a Django database counts where Django is loaded and its settings have it in DATABASES"
        return _ADDRESS
    if isinstance(given, type) and _of_sqlalchemy(given) in ("Session", "AsyncSession"):
        return "all sessions of the process would count: give a sessionmaker, or a class of sessions of your own"
    if (name := _of_sqlalchemy(type(given))) in _REMEDIES:
        return _REMEDIES[name]
    return _DRIVER if _is_of_driver(given) or inspect.isroutine(given) else ""


def _is_of_driver(given: object) -> bool:
    """Return whether a thing is a connection, a class of connections or the module of a driver (PEP 249)."""
    return hasattr(given, "paramstyle") if isinstance(given, ModuleType) else hasattr(given, "cursor")


def check_connect(connect: object) -> None:
    """Raise UsageError for what opens no connection: a connection, a class of them, an address, a pool."""
    if not callable(connect) or _is_of_driver(connect):
        raise UsageError(
            f"provider({described(connect)}): give a function that opens a connection, such as lambda: sqlite3.connect(…); "
            "connections of a pool come by connection(pool), one that is open by proxied(connection)"
        )


def _of_sqlalchemy(kind: type) -> str:
    """Return the name of the class of SQLAlchemy that a class is or derives from; empty for none."""
    return next((base.__name__ for base in kind.__mro__ if base.__module__.partition(".")[0] == "sqlalchemy"), "")
