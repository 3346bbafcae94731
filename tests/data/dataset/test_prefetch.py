"""Reading ahead: the order of tasks is kept, few batches wait, errors come at their place, and threads end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from halfmoon.data.dataset.prefetch import WAITING_MAX, Task, ahead
from tests.waiting import until


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number]})


def numbers(found: Iterator[pa.RecordBatch]) -> list[int]:
    return [one.column("n")[0].as_py() for one in found]


def task(*values: int, wait_s: float = 0) -> Task:
    def run() -> Iterator[pa.RecordBatch]:
        for value in values:
            time.sleep(wait_s)
            yield batch(value)

    return run


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "halfmoon-data"]


def ended() -> bool:
    """Wait until no thread is left."""
    return bool(until(lambda: not threads(), within_s=10))


@pytest.mark.parametrize("count", [1, 3])
def test_batches_come_in_the_order_of_their_tasks_however_long_each_takes(count: int):
    tasks = [task(1, 2, wait_s=0.05), task(), task(3), task(4, 5, wait_s=0.01), task(6)]

    assert numbers(ahead(tasks, count)) == [1, 2, 3, 4, 5, 6]
    assert ended()


def test_tasks_are_drawn_and_batches_are_made_only_a_little_ahead():
    drawn, made = 0, 0

    def run() -> Iterator[pa.RecordBatch]:
        nonlocal made
        for _ in range(100):
            made += 1
            yield batch(0)

    def tasks() -> Iterator[Task]:
        nonlocal drawn
        for _ in range(100):
            drawn += 1
            yield run

    found = ahead(tasks(), 2)
    next(found)
    time.sleep(0.3)

    assert drawn <= 3
    assert made <= 3 * (WAITING_MAX + 1) + 1
    found.close()  # type: ignore[attr-defined]
    assert ended()


def test_an_error_of_a_task_is_raised_behind_the_batches_before_it():
    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(2)
        raise ValueError("gone")

    found = ahead([task(1), broken, task(3)], 2)

    assert numbers(iter([next(found), next(found)])) == [1, 2]
    with pytest.raises(ValueError, match="gone"):
        next(found)
    assert ended()
