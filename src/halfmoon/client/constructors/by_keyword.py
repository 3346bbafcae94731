"""Base class of clients: settings are given by keyword, and old names of methods are told by their names of today."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, Self

from halfmoon.client.settings import ClientSettings
from halfmoon.errors import UsageError
from halfmoon.model.old_names import old_name


class ByKeyword:
    """Class whose constructor takes its settings by keyword, or as one object of settings."""

    def __new__(cls, *given: Any, **settings: Any) -> Self:
        """Refuse what is given by its place only, and say by which keyword. Raises UsageError.

        A constructor of a subclass that others wrote takes what it likes.
        """
        is_ours = getattr(cls.__init__, "__module__", "").startswith("halfmoon.")
        if is_ours and (len(given) > 1 or not (given[:1] in ((), (None,)) or isinstance(given[0], ClientSettings))):
            named = dict.fromkeys("nameserver" if ":" in one else "group" for one in given if isinstance(one, str))
            wanted = ", ".join(f"{name}=…" for name in named or ("group", "nameserver"))
            raise UsageError(f"{cls.__name__} takes its settings by keyword: {cls.__name__}({wanted})")
        return super().__new__(cls)

    def __init_subclass__(cls, **options: Any) -> None:
        """Have our own `subscribe` refuse arguments that do not fit in our words, whatever they are."""
        super().__init_subclass__(**options)
        if cls.__module__.startswith("halfmoon.") and "subscribe" in vars(cls):
            cls.subscribe = _refusing_functions(vars(cls)["subscribe"])  # type: ignore[attr-defined]  # it is there

    if not TYPE_CHECKING:  # to a type checker every attribute would be there

        def __getattr__(self, name: str) -> NoReturn:
            told = next((f": {text}" for cls in type(self).__mro__ if (text := old_name(cls.__name__, name))), "")
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{told}", name=name, obj=self)


def _refusing_functions(subscribe: Callable[..., None]) -> Callable[..., None]:
    """Return ``subscribe`` that raises UsageError for a listener among its arguments, and for arguments that it does not take."""
    signature = inspect.signature(subscribe)
    shown = "subscribe(topic, expression), or subscribe(topic, sql=…)"

    @wraps(subscribe)
    def checked(*arguments: Any, **named: Any) -> None:
        if any(map(callable, (*arguments[1:], *named.values()))):
            raise UsageError(
                f"{shown} takes no function: a push consumer has one listener, which consumer.on_message(function) sets, and a "
                "pull consumer is polled"
            )
        try:
            signature.bind(*arguments, **named)
        except TypeError as exc:
            raise UsageError(f"{shown}: {exc}") from None
        subscribe(*arguments, **named)

    return checked
