"""Operations run in the thread that asks: requests sent there, steps that the loop does, and errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from halfmoon.effects import Call, Now, Op, Run, Sleep, Tell, on_loop
from halfmoon.errors import ConnectFailed, UsageError
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.drivers.asyncio_driver import AsyncioDriver
from halfmoon.runtime.drivers.blocking_driver import BlockingDriver
from halfmoon.runtime.drivers.threads import BackgroundLoop
from halfmoon.wire.headers.offset import GetMaxOffset, GetMinOffset
from tests.waiting import soon

HERE, ELSEWHERE = GetMaxOffset(topic="t", queue_id=1), GetMinOffset(topic="t", queue_id=1)


class Line:
    """Carries requests for the test: remembers by whom and what."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.room = True
        self.error: Exception | None = None

    def call(self, address: str, request: Any, body: bytes, timeout_ms: int) -> Any:
        self.seen.append((threading.current_thread().name, request))
        if self.error is not None:
            raise self.error
        return "answer" if self.room else None

    def tell(self, address: str, request: Any, body: bytes, remark: str | None = None) -> bool:
        self.call(address, request, body, 0)
        return self.room

    def close(self) -> None:
        self.seen.append(("closed", None))


class LoopLine:
    """What the loop's driver has."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.told = threading.Event()
        self.error: Exception | None = None

    async def call(self, address: str, request: Any, body: bytes, timeout_ms: int) -> Any:
        self.seen.append((threading.current_thread().name, request))
        if self.error is not None:
            raise self.error
        return "from the loop"

    async def tell(self, *arguments: Any) -> None:
        self.seen.append((threading.current_thread().name, arguments[1]))
        self.told.set()


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    made = BackgroundLoop()
    yield made
    made.stop()


class Both:
    def __init__(self, loop: BackgroundLoop) -> None:
        self.line, self.on_loop = Line(), LoopLine()
        driver = AsyncioDriver(self.on_loop, Clock())  # type: ignore[arg-type]
        self.driver = BlockingDriver(self.line, loop, driver, frozenset((GetMaxOffset,)))  # type: ignore[arg-type]


@pytest.fixture
def both(loop: BackgroundLoop) -> Both:
    return Both(loop)


def asking(*requests: Any) -> Op[list[Any]]:
    found = []
    for request in requests:
        found.append((yield Call("a:1", request, b"", 1_000)))
    return found


def test_requests_that_may_be_sent_there_run_in_the_calling_thread(both: Both) -> None:
    def operation() -> Op[tuple[Any, Any]]:
        at = yield Now()
        answer = yield Call("a:1", HERE, b"", 1_000)
        yield Tell("a:1", HERE, b"")
        return at > 1_600_000_000_000, answer

    assert both.driver.run(operation()) == (True, "answer")
    assert {name for name, _ in both.line.seen} == {threading.current_thread().name}
    assert both.on_loop.seen == []


def test_other_requests_are_sent_by_the_loop_and_those_that_follow_by_the_thread_again(both: Both) -> None:
    assert both.driver.run(asking(HERE, ELSEWHERE, HERE)) == ["answer", "from the loop", "answer"]

    assert [request for _, request in both.line.seen] == [HERE, HERE]
    assert both.on_loop.seen == [("halfmoon-loop", ELSEWHERE)]


def test_the_users_code_runs_in_the_calling_thread_and_coroutines_on_the_loop(both: Both) -> None:
    async def coroutine() -> str:
        return threading.current_thread().name

    def operation() -> Op[tuple[int, str]]:
        yield Sleep(1)
        return (yield Run(threading.get_ident)), (yield Run(coroutine))

    assert both.driver.run(operation()) == (threading.get_ident(), "halfmoon-loop")


def test_an_operation_for_the_loop_alone_runs_there_and_the_rest_goes_on_here(both: Both) -> None:
    threads = []

    def inner(error: Exception | None) -> Op[int]:
        threads.append(threading.current_thread().name)
        yield Now()
        if error is not None:
            raise error
        return 7

    def operation() -> Op[tuple[int, str]]:
        found = yield from on_loop(inner(None))
        try:
            yield from on_loop(inner(ConnectFailed("gone", "a:1")))
        except ConnectFailed as exc:
            threads.append(threading.current_thread().name)
            return found, str(exc)
        raise AssertionError("no error")

    assert both.driver.run(operation()) == (7, "gone")
    assert threads == ["halfmoon-loop", "halfmoon-loop", threading.current_thread().name]


@pytest.mark.parametrize("face", ["asyncio", "greenlet"])
def test_on_another_loop_nothing_is_sent_or_waited_for_but_the_users_code_runs_there(both: Both, face: str) -> None:
    threads: list[str] = []

    def inner() -> Op[int]:
        threads.append(threading.current_thread().name)
        yield Now()
        return 7

    def operation() -> Op[list[Any]]:
        found = [(yield Run(threading.get_ident)), (yield from on_loop(inner()))]
        both.on_loop.error = ConnectFailed("gone", "a:1")
        with pytest.raises(ConnectFailed):
            yield Call("a:1", HERE, b"", 1_000)
        both.on_loop.error = None
        return [*found, (yield Call("a:1", HERE, b"", 1_000))]

    waited = asyncio.new_event_loop()
    found = (
        waited.run_until_complete(both.driver.run_async(operation()))
        if face == "asyncio"
        else both.driver.run(operation(), waited.run_until_complete)
    )
    waited.close()
    assert found == [threading.get_ident(), 7, "from the loop"]
    assert threads == ["halfmoon-loop"]
    assert (both.line.seen, both.on_loop.seen) == ([], [("halfmoon-loop", HERE)] * 2)


def test_on_another_loop_coroutines_are_awaited_there_and_cancelling_reaches_the_operation(both: Both) -> None:
    seen: list[str] = []

    async def coroutine() -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    def operation() -> Op[None]:
        assert (yield Run(coroutine)) == threading.get_ident()
        try:
            seen.append("begun")
            yield Sleep(60_000)
        except BaseException as exc:
            seen.append(type(exc).__name__)
            raise

    async def cancelled() -> None:
        task = asyncio.create_task(both.driver.run_async(operation()))
        await soon(lambda: seen)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert seen == ["begun", "CancelledError"]


def test_without_room_for_a_connection_the_loop_asks_and_nothing_is_asked_twice(both: Both) -> None:
    both.line.room = False

    assert both.driver.run(asking(HERE)) == ["from the loop"]
    assert both.on_loop.seen == [("halfmoon-loop", HERE)]


def test_an_error_is_the_operations_to_handle(both: Both) -> None:
    both.line.error = ConnectFailed("gone", "a:1")

    def operation() -> Op[str]:
        try:
            yield Call("a:1", HERE, b"", 1_000)
        except ConnectFailed as exc:
            return str(exc)
        return "no error"

    assert both.driver.run(operation()) == "gone"
    with pytest.raises(ConnectFailed):
        both.driver.run(asking(HERE))


def test_posted_it_never_waits_and_the_loop_does_the_rest(both: Both) -> None:
    def operation() -> Op[None]:
        yield Tell("a:1", HERE, b"")

    both.driver.post(operation())
    assert both.on_loop.seen == []

    both.line.room = False
    both.driver.post(operation())
    assert both.on_loop.told.wait(60)
    assert both.on_loop.seen == [("halfmoon-loop", HERE)]


def test_it_is_refused_in_the_loops_own_thread(both: Both, loop: BackgroundLoop) -> None:
    async def inside() -> None:
        both.driver.run(asking(HERE))

    with pytest.raises(UsageError, match="own loop"):
        loop.call(inside())
    assert both.line.seen == []


def test_it_is_refused_in_a_forked_child(both: Both, loop: BackgroundLoop) -> None:
    loop.pid += 1

    with pytest.raises(UsageError, match="forked"):
        both.driver.run(asking(HERE))
    with pytest.raises(UsageError, match="forked"):
        both.driver.post(asking(HERE))  # type: ignore[arg-type]
    loop.pid -= 1
    assert both.line.seen == []


def test_closing_it_closes_its_connections(both: Both) -> None:
    both.driver.close()

    assert both.line.seen == [("closed", None)]
