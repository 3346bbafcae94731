"""Registry of the packages that provide transactions: finds the provider of what a publisher or a consumer was given.

A package of another distribution registers itself by an entry point of the group `GROUP`. Its name is the module of the library
that it serves, its value a function ``provider_of(given, *, bind, schema)``, which returns the `Provider` of a thing of that
library, or None for anything else::

    [project.entry-points."halfmoon.events.providers"]
    "shopdb.sessions" = "shopdb_halfmoon:provider_of"

A package is loaded once its library is loaded, and never before: libraries are extras. Knows none of them otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from halfmoon.errors import UsageError
from halfmoon.events.databases.given import described, remedy_of

GROUP = "halfmoon.events.providers"

_OWN = {"sqlalchemy.orm": "halfmoon.events.sqlalchemy:provider_of", "django.db": "halfmoon.events.django.databases:provider_of"}
"""Packages of this distribution, which need no installed metadata."""

_Find = Callable[..., Any]
"""A package's ``provider_of``. It is written without `Provider` here, whose module this one must not import."""

_found: dict[tuple[str, str], _Find] = {}
_failed: dict[tuple[str, str], Exception] = {}


def provider_of(given: Any, name: str, *, bind: Any = None, schema: str | None = None) -> Any:
    """Return the `Provider` of a thing of a database library, or the provider that was given itself.

    ``name`` is the argument that had it, for errors. Raises UsageError for a thing that no registered package knows, and what a
    package raises for one that it refuses.
    """
    if is_provider(given):
        if bind is not None or schema is not None:
            raise UsageError(f"bind= and schema= say more about sessions, and {name}= is a provider: it has its own")
        return given
    for find in load_packages():
        if (found := find(given, bind=bind, schema=schema)) is not None:
            return found
    remedy = remedy_of(given) or (
        "give a sessionmaker, async_sessionmaker, Engine, the alias of a Django database or a provider, of a library that is "
        "installed (pip install 'halfmoon[sqlalchemy]' or 'halfmoon[django]')"
    )
    failed = "".join(f"; {library} ({place}): {error}" for (library, place), error in _failed.items())
    raise UsageError(f"{name}= is {described(given)}: {remedy}{failed}")


def is_provider(given: Any) -> bool:
    """Return whether a thing has what publishers ask a provider for."""
    return all(callable(getattr(given, method, None)) for method in ("fresh", "rows", "current"))


def load_packages() -> list[_Find]:
    """Load the packages whose library is loaded by now, and return the functions of all of them."""
    for entry in _registered():
        key = entry.name, entry.value
        if entry.name in sys.modules and key not in _found and key not in _failed:
            try:
                _found[key] = entry.load()
            except Exception as error:  # a release of the library that is too old, or a package that is broken
                _failed[key] = error
    return list(_found.values())


@lru_cache(maxsize=1)
def _registered() -> list[EntryPoint]:
    own = [EntryPoint(name, place, GROUP) for name, place in _OWN.items()]
    return [*own, *entry_points(group=GROUP)]
