"""Stacks of all threads and tasks of this process, as text for operators."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from types import FrameType

STACKS_LENGTH_MAX = 64 * 1024
"""Longest text, characters: room for a hundred threads in one small frame."""

_FRAMES_MAX = 100
"""Bound of innermost frames of one stack; an endless recursion has thousands."""


def stacks(length_max: int = STACKS_LENGTH_MAX) -> str:
    """Return the stacks of all threads, and of the tasks of the running event loop, cut off at a length.

    A stack begins with the name of its thread or task; each line is ``module.function(file:line)``, the innermost first.
    Modules and file names, but no directories and no values. Follows UtilAll.jstack (RocketMQ 4.9.8).
    """
    lines: list[str] = []
    length = 0
    for line in _lines():
        if length + len(line) + 1 > length_max:
            lines.append("... cut off")
            break
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)


def _lines() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        name = names.get(ident, "?")
        yield f"{name:<40}TID: {ident}"
        yield from _stack(name, _outwards(frame))
        yield ""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no event loop runs in this thread
        return
    for task in tasks:
        name = task.get_name()
        yield f"{name:<40}TASK"
        yield from _stack(name, reversed(task.get_stack(limit=_FRAMES_MAX)))
        yield ""


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _stack(name: str, frames: Iterator[FrameType]) -> Iterator[str]:
    for frame in frames:
        code = frame.f_code
        place = f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        yield f"{name:<40}{frame.f_globals.get('__name__', '?')}.{code.co_qualname}({place})"
