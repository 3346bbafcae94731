"""Operations that are part of a core: after each of their steps the core wants a turn. Drives nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from halfmoon.effects import Gather, Spawn


def watched(operation: Any, wake: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Return the same operation, with ``wake`` called after each of its steps, because a step may have changed the core.

    Operations that it gathers or spawns are watched as well.
    """
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = operation.send(value) if error is None else operation.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            wake()
        if isinstance(request, Gather):
            request = Gather([watched(each, wake) for each in request.operations])
        elif isinstance(request, Spawn):
            request = Spawn(watched(request.operation, wake), request.name)
        value, error = None, None
        try:
            value = yield request
        except GeneratorExit:
            operation.close()
            raise
        except BaseException as exc:
            error = exc
