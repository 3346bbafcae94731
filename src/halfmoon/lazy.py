"""Names of a package that are loaded when first used. Imports nothing until then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    package: str, names_in: Mapping[str, str], *beside: str, extra: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package: ``names_in`` has, for modules of it, names joined by blanks.

    ``__getattr__`` raises AttributeError for any other name; ``beside`` are names of the package itself, which ``dir`` lists too.
    Where a module of another distribution is missing, its ModuleNotFoundError says that ``extra`` brings it.
    """
    place_of = {name: f"{package}.{place}" for place, names in names_in.items() for name in names.split()}

    def load(name: str) -> Any:
        place = place_of.get(name)
        if place is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(place), name)
        except ModuleNotFoundError as exc:
            missing = (exc.name or "").partition(".")[0]
            if not extra or missing == package.partition(".")[0]:
                raise
            text = f"{package} needs {missing}, which is not installed: pip install 'halfmoon[{extra}]'"
            raise ModuleNotFoundError(text, name=exc.name) from exc

    return load, lambda: [*place_of, *beside]
