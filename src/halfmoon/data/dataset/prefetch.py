"""Reading ahead: batches of many tasks in their order, tasks side by side in threads, few batches waiting."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, Full, Queue
from typing import Any

import pyarrow as pa

Task = Callable[[], Iterator[pa.RecordBatch]]

WAITING_MAX = 4
"""Batches of one task that may wait until those before them are taken."""

WAKE_S = 0.1
"""Interval at which a blocked thread looks whether anybody still wants its batches."""

_END = object()


def ahead(tasks: Iterable[Task], threads: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches of tasks, task by task, while the next ``threads`` ones run in threads of their own.

    At most `WAITING_MAX` batches of each such task wait, besides the one that its thread makes. An error of a task is raised at
    its place. When the iterator is closed or deleted, tasks end at their next batch. Tasks are drawn one by one.
    """
    stopped = threading.Event()
    running: deque[Queue[Any]] = deque()
    waiting = iter(tasks)
    try:
        while True:
            while len(running) < threads + 1 and (task := next(waiting, None)) is not None:
                running.append(_started(task, stopped))
            if not running:
                return
            yield from _taken(running[0])
            running.popleft()
    finally:
        stopped.set()


def _started(task: Task, stopped: threading.Event) -> Queue[Any]:
    results: Queue[Any] = Queue(WAITING_MAX)
    threading.Thread(target=_run, args=(task, results, stopped), name="halfmoon-data", daemon=True).start()
    return results


def _run(task: Task, results: Queue[Any], stopped: threading.Event) -> None:
    end: Any = _END
    batches = task()
    try:
        for batch in batches:
            if not _put(results, batch, stopped):
                return
    except BaseException as exc:  # raised again where the batches are taken
        end = exc
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()
    _put(results, end, stopped)


def _put(results: Queue[Any], value: Any, stopped: threading.Event) -> bool:
    while not stopped.is_set():
        try:
            results.put(value, timeout=WAKE_S)
            return True
        except Full:
            continue
    return False


def _taken(results: Queue[Any]) -> Iterator[pa.RecordBatch]:
    while (value := _next(results)) is not _END:
        if isinstance(value, BaseException):
            raise value
        yield value


def _next(results: Queue[Any]) -> Any:
    while True:
        try:
            return results.get(timeout=60)  # with a timeout, Ctrl-C ends the wait
        except Empty:
            continue
