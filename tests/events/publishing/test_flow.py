"""Operations are written once and driven twice, blocking and on an event loop: with the same steps, results and errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halfmoon.errors import ConnectionLost, RequestTimeout
from halfmoon.events.publishing.flow import NOW, Flow, Pause, Prepare, Send, Write, drive, drive_async
from halfmoon.events.transaction import LocalTransaction, current
from halfmoon.model import Message
from tests.events.fakes import Blocks, FakeTransport, lost
from tests.waiting import soon

Drive = Callable[[Flow[Any], FakeTransport], Any]


def _async(flow: Flow[Any], transport: FakeTransport) -> Any:
    return asyncio.run(drive_async(flow, transport))


@pytest.fixture(params=[drive, _async], ids=["blocking", "asyncio"])
def run(request: pytest.FixtureRequest) -> Drive:
    found: Drive = request.param
    return found


def _message() -> Message:
    return Message("TP_A", b"x", msg_id="1")


def test_results_go_back_into_the_operation(run: Drive) -> None:
    def flow() -> Flow[list[Any]]:
        sent = yield Send(_message(), 1, 100)
        prepared = yield Prepare(_message(), 2, 200, 7)
        wall, steady = yield NOW
        yield Pause(0.05)
        _, later = yield NOW
        return [sent.msg_id, prepared.message_id, abs(wall - time.time() * 1000) < 5_000, later - steady >= 0.049]

    transport = FakeTransport()
    assert run(flow(), transport) == ["1", "1", True, True]
    assert [(call.kind.removesuffix("_async"), *call[2:]) for call in transport.calls] == [
        ("send", 1, 100, None),
        ("prepare", 2, 200, 7),
    ]


def test_an_error_of_a_step_is_thrown_into_the_operation_which_may_go_on_or_let_it_go(run: Drive) -> None:
    def flow() -> Flow[Any]:
        with pytest.raises(RequestTimeout):
            yield Send(_message(), 1, 100)
        yield Send(_message(), 2, 100)

    error = ConnectionLost("gone", "127.0.0.1:1")
    with pytest.raises(ConnectionLost) as caught:
        run(flow(), FakeTransport(lost(), error))
    assert caught.value is error


@pytest.mark.parametrize("waits", [True, False])
def test_a_statement_runs_in_its_transaction(run: Drive, tmp_path: Path, waits: bool) -> None:
    database = Blocks(tmp_path / "shop.db")

    def flow(transaction: LocalTransaction) -> Flow[int]:
        yield Write(database, transaction, "CREATE TABLE a (n INTEGER)", {})
        count = yield Write(database, transaction, "INSERT INTO a VALUES (:n), (:n)", {"n": 7})
        return int(count)

    with database.begin(waits=waits) as connection:
        transaction = current(database)
        assert transaction is not None
        assert run(flow(transaction), FakeTransport()) == 2
        assert database.awaited == (0 if waits or run is drive else 2)
        assert connection.execute("SELECT n FROM a").fetchall() == [(7,), (7,)]


async def test_a_cancelled_operation_is_told_so() -> None:
    seen: list[str] = []

    def flow() -> Flow[None]:
        try:
            seen.append("begun")
            yield Pause(60)
        except BaseException as exc:
            seen.append(type(exc).__name__)
            raise

    task = asyncio.create_task(drive_async(flow(), FakeTransport()))
    await soon(lambda: seen)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["begun", "CancelledError"]
