"""Names of a package that are loaded when first used. Imports nothing until then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy(
    package: str, names_in: Mapping[str, str], *beside: str, extra: str = "", others: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package: ``names_in`` has, for modules of it, names joined by blanks.

    ``__getattr__`` raises AttributeError for any other name, with the one that was meant: it is spelt alike, or the function
    ``old_name(package, name)`` of the module ``others`` knows it. ``from package import name`` gets the same as an ImportError.
    ``beside`` are names of the package itself, which ``dir`` lists too. Where a module of another distribution is missing, its
    ModuleNotFoundError says that ``extra`` brings it.
    """
    place_of = {name: f"{package}.{place}" for place, names in names_in.items() for name in names.split()}

    def load(name: str) -> Any:
        place = place_of.get(name)
        if place is None:
            raise _missing(package, name, [*place_of, *beside], others)
        try:
            return getattr(import_module(place), name)
        except ModuleNotFoundError as exc:
            missing = (exc.name or "").partition(".")[0]
            if not extra or missing == package.partition(".")[0]:
                raise
            text = f"{package} needs {missing}, which is not installed: pip install 'halfmoon[{extra}]'"
            raise ModuleNotFoundError(text, name=exc.name) from exc

    return load, lambda: [*place_of, *beside]


def _missing(package: str, name: str, known: list[str], others: str) -> Exception:
    """Return the error for a name that a package has not, to be raised by its ``__getattr__``."""
    text = f"module {package!r} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(text)
    if find_spec(f"{package}.{name}") is not None:
        return AttributeError(f"{text}: it is a module, which `import {package}.{name}` brings")
    near = get_close_matches(name, known, 1)
    told = (import_module(others).old_name(package, name) if others else "") or (f"did you mean {near[0]!r}?" if near else "")
    if told and sys._getframe(2).f_globals.get("__name__") == "importlib._bootstrap":
        # `from package import name` would drop the text of an AttributeError
        return ImportError(f"cannot import name {name!r} from {package!r}: {told}", name=package)
    return AttributeError(f"{text}: {told}" if told else text)
