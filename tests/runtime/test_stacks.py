"""Stacks of threads and tasks: named, innermost first, without directories, and never longer than asked for."""

from __future__ import annotations

import asyncio
import threading

from halfmoon.runtime.stacks import STACKS_LENGTH_MAX, stacks


def waits_there(started: threading.Event, ended: threading.Event) -> None:
    started.set()
    ended.wait()


def test_a_thread_is_shown_with_what_it_does_innermost_first():
    started, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=waits_there, args=(started, ended), name="a listener")
    thread.start()
    started.wait()
    text = stacks()
    ended.set()
    thread.join()

    lines = [line for line in text.splitlines() if line.startswith("a listener")]
    assert lines[0] == f"{'a listener':<40}TID: {thread.ident}"
    places = [line[40:].partition("(")[0].rpartition(".")[2] for line in lines[1:]]
    assert places.index("wait") < places.index("waits_there") < places.index("run")
    assert "/" not in "".join(lines)


def test_tasks_of_the_running_loop_are_shown():
    async def consume() -> None:
        await asyncio.sleep(60)

    async def main() -> str:
        task = asyncio.create_task(consume(), name="consuming")
        await asyncio.sleep(0)
        text = stacks()
        task.cancel()
        return text

    text = asyncio.run(main())

    assert f"{'consuming':<40}TASK" in text
    assert ".consume(test_stacks.py:" in text


def deep(left: int) -> str:
    return stacks(10**9) if left == 0 else deep(left - 1)


def test_a_stack_has_a_hundred_frames_at_most():
    assert deep(300).count(".deep(test_stacks.py:") < 100


def test_the_text_is_cut_off_at_its_length():
    text = stacks(200)

    assert len(text) <= 200 + len("\n... cut off")
    assert text.endswith("... cut off")
    assert len(stacks()) <= STACKS_LENGTH_MAX + len("\n... cut off")
