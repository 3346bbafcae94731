"""The table of classes: names that declarations use, Java classes too, and the Python objects behind them.

Only what stands in the table is ever imported; a name in a file alone loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from halfmoon.events.declarations.declaration import nearest
from halfmoon.events.errors import DeclarationRefused

CLASSES_MAX = 10_000

Function = Callable[..., Any]
_PATH = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)")


class ClassTable:
    """Names and what stands behind them: import paths (``shop.mail:MailListener``) or objects.

    An object is a function, a class, of which one is made without arguments and shared by all that name it, or something made
    already. Raises DeclarationRefused for a path that is none.
    """

    def __init__(self, classes: Mapping[str, object], place: str = "classes") -> None:
        if len(classes) > CLASSES_MAX:
            raise DeclarationRefused(place, f"more than {CLASSES_MAX} classes", "leave out what no declaration names")
        for name, value in classes.items():
            if isinstance(value, str) and not _PATH.fullmatch(value):
                raise DeclarationRefused(f"{place}.{name}", f"{value!r:.80} is no import path", "write package.module:Name")
        self._classes = dict(classes)
        self._made: dict[str, Any] = {}

    def function(self, name: str, place: str, *, method: str) -> Function:
        """Return what is to be called for a name: the object, or its ``method`` where it cannot be called itself.

        Raises DeclarationRefused, naming ``place``: not in the table, cannot be imported or made, nothing to call.
        """
        made = self._object(name, place)
        target = getattr(made, method, None) or made
        if not callable(target):
            what = f"{name!r:.80} is a {type(made).__name__} that cannot be called"
            raise DeclarationRefused(place, what, f"give it a method {method}(event, context)")
        return target  # type: ignore[no-any-return]

    def _object(self, name: str, place: str) -> Any:
        if name not in self._classes:
            remedy = f'add {name!r:.80} = "package.module:Name" to the table of classes'
            if self._classes:
                remedy += f"; {nearest(name, self._classes)}"
            raise DeclarationRefused(place, f"{name!r:.80} is not in the table of classes", remedy)
        value = self._classes[name]
        key = value if isinstance(value, str) else name
        if key not in self._made:
            self._made[key] = _instance(_imported(value, place) if isinstance(value, str) else value, key, place)
        return self._made[key]


def _imported(path: str, place: str) -> Any:
    module, _, name = path.partition(":")
    try:
        target: Any = import_module(module)
        for attribute in name.split("."):
            target = getattr(target, attribute)
    except ImportError as exc:
        raise DeclarationRefused(place, f"{path} cannot be imported: {exc}", "mend the table of classes, or PYTHONPATH") from exc
    except AttributeError as exc:
        raise DeclarationRefused(place, f"{path}: {exc}", "mend the name behind the colon") from exc
    except Exception as exc:
        what = f"{path} cannot be imported: {type(exc).__name__}: {exc}"
        raise DeclarationRefused(place, what, f"mend the module {module}") from exc
    return target


def _instance(value: Any, name: str, place: str) -> Any:
    if not isinstance(value, type):
        return value
    try:
        return value()
    except Exception as exc:
        what = f"{name} cannot be made: {type(exc).__name__}: {exc}"
        raise DeclarationRefused(place, what, "put an instance into the table instead of the class") from exc
