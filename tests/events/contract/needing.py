"""What a promise needs of the adapters with which it is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Promise = TypeVar("Promise", bound=Callable[..., None])


def needs(*traits: str) -> Callable[[Promise], Promise]:
    """Run a promise only with adapters that have all of these traits."""

    def note(promise: Promise) -> Promise:
        promise.needs = frozenset(traits)  # type: ignore[attr-defined]
        return promise

    return note
