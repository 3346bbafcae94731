"""Operations are written once and driven twice, blocking and on an event loop: with the same steps, results and errors."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halfmoon.events.publishing.flow import NOW, Attempt, Flow, Pause, Write, drive, drive_async
from halfmoon.events.transaction import LocalTransaction
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


def _message(attempt: int = 1) -> tuple[Message]:
    return (Message("TP_A", b"x", msg_id="1", attempt=attempt),)


def test_results_go_back_into_the_operation(run: Drive) -> None:
    def flow() -> Flow[list[Any]]:
        (sent,) = yield Attempt(_message(), 100)
        (prepared,) = yield Attempt(_message(2), 200, True, 7)
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


@pytest.mark.parametrize("half", [False, True])
def test_what_an_attempt_raises_is_its_result_and_the_operation_may_go_on(run: Drive, half: bool) -> None:
    def flow() -> Flow[list[str]]:
        (failed,) = yield Attempt(_message(), 100, half)
        (sent,) = yield Attempt(_message(2), 100, half)
        return [type(failed).__name__, type(sent).__name__]

    assert run(flow(), FakeTransport(lost())) == ["RequestTimeout", "Prepared" if half else "SendResult"]


def test_an_error_of_a_statement_is_thrown_into_the_operation_and_reaches_who_drives_it(run: Drive, tmp_path: Path) -> None:
    database = Blocks(tmp_path / "shop.db")

    def flow(transaction: LocalTransaction) -> Flow[None]:
        yield Write(database, transaction, "INSERT INTO nowhere VALUES (1)", {})

    with database.begin() as connection, pytest.raises(sqlite3.OperationalError, match="nowhere"):
        run(flow(database.current()), FakeTransport())
    assert connection


@pytest.mark.parametrize("waits", [True, False])
def test_a_statement_runs_in_its_transaction(run: Drive, tmp_path: Path, waits: bool) -> None:
    database = Blocks(tmp_path / "shop.db")

    def flow(transaction: LocalTransaction) -> Flow[int]:
        yield Write(database, transaction, "CREATE TABLE a (n INTEGER)", {})
        count = yield Write(database, transaction, "INSERT INTO a VALUES (:n), (:n)", {"n": 7})
        return int(count)

    with database.begin(waits=waits) as connection:
        transaction = database.current()
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
