"""Operations that change a core: a turn follows each of their steps. Drives nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from halfmoon.effects import Gather, Spawn


def supervised(operation: Any, wake: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Return an operation that calls ``wake`` after each step, because a step may have changed the core.

    Applies to gathered and spawned operations, too.
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
            request = Gather([supervised(gathered, wake) for gathered in request.operations])
        elif isinstance(request, Spawn):
            request = Spawn(supervised(request.operation, wake), request.name)
        value, error = None, None
        try:
            value = yield request
        except GeneratorExit:
            operation.close()
            raise
        except BaseException as exc:
            error = exc
