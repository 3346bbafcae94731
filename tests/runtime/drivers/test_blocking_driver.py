"""Operations run in the thread that asks: what is sent there, what is handed on, and what is raised."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from halfmoon.effects import Call, Now, Op, Run, Sleep, Tell
from halfmoon.errors import ConnectFailed, UsageError
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.drivers.asyncio_driver import Driver
from halfmoon.runtime.drivers.blocking_driver import BlockingDriver
from halfmoon.runtime.drivers.threads import BackgroundLoop
from halfmoon.wire.headers.offset import GetMaxOffset, GetMinOffset

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

    async def call(self, address: str, request: Any, body: bytes, timeout_ms: int) -> Any:
        self.seen.append((threading.current_thread().name, request))
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
        driver = Driver(self.on_loop, Clock())  # type: ignore[arg-type]
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


def test_what_may_not_is_done_by_the_loop_and_all_that_follows(both: Both) -> None:
    assert both.driver.run(asking(HERE, ELSEWHERE, HERE)) == ["answer", "from the loop", "from the loop"]

    assert [request for _, request in both.line.seen] == [HERE]
    assert both.on_loop.seen == [("halfmoon-loop", ELSEWHERE), ("halfmoon-loop", HERE)]


@pytest.mark.parametrize("effect", [Sleep(1), Run(threading.get_ident)])
def test_waiting_and_the_users_code_are_the_loops(both: Both, effect: Any) -> None:
    def operation() -> Op[Any]:
        return (yield effect)

    assert both.driver.run(operation()) != threading.get_ident()


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


def test_it_is_refused_in_a_forked_child(both: Both, loop: BackgroundLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "pid", os.getpid() + 1)

    with pytest.raises(UsageError, match="forked"):
        both.driver.run(asking(HERE))
    with pytest.raises(UsageError, match="forked"):
        both.driver.post(asking(HERE))  # type: ignore[arg-type]
    monkeypatch.undo()
    assert both.line.seen == []


def test_closing_it_closes_its_connections(both: Both) -> None:
    both.driver.close()

    assert both.line.seen == [("closed", None)]
