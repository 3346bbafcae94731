"""Operations run in virtual time with real frames."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.effects import Call, Gather, Now, Run, Signal, Spawn, Tell, Wait, sleep
from halfmoon.errors import ConnectFailed, ConnectionLost, RequestTimeout
from halfmoon.testing.driver import Calls, Driver, StillRunning, Task
from halfmoon.testing.host import CoreHost
from halfmoon.testing.network import Network
from halfmoon.testing.timeline import START_MS, Timeline
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import Command, reply_command
from halfmoon.wire.headers.offset import OffsetReply
from tests.testing.toy import ASK, Toy


class Bench:
    """A toy server and a driver of operations beside it."""

    def __init__(self, seed: int = 1, serialization: int = JSON) -> None:
        self.timeline = Timeline(seed)
        self.network = Network(self.timeline)
        self.host = CoreHost(self.timeline, self.network, "10.0.0.1", [1000], "toy")
        self.toy = Toy()
        self.host.boot(lambda now: self.toy)
        self.pushed: list[Command] = []
        self.calls = Calls(self.timeline, self.network, "10.0.0.9", handler=self._pushed, serialization=serialization)
        self.driver = Driver(self.timeline, self.calls, lambda: self.timeline.now, "client")

    def _pushed(self, address: str, command: Command, answer: Any) -> None:
        self.pushed.append(command)
        answer(reply_command(command, header=OffsetReply(offset=5)))

    def run(self, operation: Any, ms: int = 10_000) -> Task[Any]:
        task = self.driver.start(operation, "test")
        self.timeline.run(ms=ms)
        return task


def ask(timeout_ms: int = 1000, address: str = "10.0.0.1:1000") -> Any:
    reply = yield Call(address, ASK, b"", timeout_ms)
    return reply.header(OffsetReply).offset


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_call_brings_the_reply_to_its_own_request(serialization: int) -> None:
    bench = Bench(serialization=serialization)

    def operation() -> Any:
        return (yield Gather([ask() for _ in range(20)]))

    assert sorted(bench.run(operation()).result()) == list(range(1, 21))
    assert len(bench.toy.inboxes) == 1


def test_sleep_and_now_take_virtual_time() -> None:
    def operation() -> Any:
        before = yield Now()
        yield from sleep(90_000)
        return before, (yield Now())

    assert Bench().run(operation(), ms=100_000).result() == (START_MS, START_MS + 90_000)


def test_a_result_is_not_there_before_the_end() -> None:
    task = Bench().run(sleep(50), ms=49)
    with pytest.raises(StillRunning):
        task.result()


def test_gather_keeps_errors_beside_results_and_their_order() -> None:
    def bad() -> Any:
        yield from sleep(3)
        raise ValueError("no")

    def good() -> Any:
        yield from sleep(9)
        return 1

    def operation() -> Any:
        return (yield Gather([good(), bad(), good()])), (yield Gather([]))

    first, empty = Bench().run(operation()).result()
    assert first[0] == first[2] == 1
    assert isinstance(first[1], ValueError)
    assert empty == []


def test_a_refused_connection_a_missing_answer_and_a_lost_connection_are_errors() -> None:
    bench = Bench()
    assert isinstance(bench.run(ask(address="10.0.0.1:9")).error, ConnectFailed)
    bench.toy.on_request = lambda peer, request: None
    assert isinstance(bench.run(ask(timeout_ms=500)).error, RequestTimeout)
    task = bench.driver.start(ask(), "")
    bench.timeline.run(ms=5)
    bench.host.kill()
    bench.timeline.run(ms=5)
    assert isinstance(task.error, ConnectionLost)


def test_a_host_that_nobody_reaches_times_out() -> None:
    bench = Bench()
    bench.network.cut("10.0.0.9", "10.0.0.1")
    assert isinstance(bench.run(ask(timeout_ms=3000)).error, RequestTimeout)


def test_after_a_lost_connection_the_next_call_connects_anew() -> None:
    bench = Bench()
    assert bench.run(ask()).result() == 1
    bench.network.lose(bench.network.connections("10.0.0.9")[0])
    bench.timeline.run(ms=10)
    assert bench.run(ask()).result() == 2


def test_a_one_way_request_returns_once_it_is_handed_over() -> None:
    bench = Bench()

    def operation() -> Any:
        yield Tell("10.0.0.1:1000", ASK, b"")
        yield Tell("10.0.0.1:1000", ASK, b"")

    assert bench.run(operation()).result() is None
    assert bench.toy.requests == 2


def test_a_wait_ends_with_the_signal_or_the_time() -> None:
    bench, signal = Bench(), Signal()

    def operation() -> Any:
        return (yield Wait(signal, 100)), (yield Wait(signal, 100)), (yield Wait(signal))

    task = bench.driver.start(operation(), "")
    bench.timeline.after(50, signal.fire)
    bench.timeline.after(300, signal.fire)
    bench.timeline.run(ms=400)
    assert task.result() == (True, False, True)


def test_the_users_code_runs_and_its_errors_come_back() -> None:
    def fail() -> None:
        raise KeyError("mine")

    async def later() -> int:
        return 4

    def operation() -> Any:
        found = [(yield Run(max, (1, 3))), (yield Run(later))]
        try:
            yield Run(fail)
        except KeyError as exc:
            found.append(str(exc))
        return found

    assert Bench().run(operation()).result() == [3, 4, "'mine'"]


def test_a_spawned_operation_goes_on_until_it_is_cancelled() -> None:
    bench = Bench()
    done: list[Any] = []

    def forever() -> Any:
        try:
            while True:
                yield from sleep(10)
                done.append(1)
        finally:
            done.append("end")

    def operation() -> Any:
        handle = yield Spawn(forever(), "forever")
        yield from sleep(35)
        handle.cancel()

    bench.run(operation())
    assert done == [1, 1, 1, "end"]


def test_requests_of_the_server_reach_the_handler_and_its_answer_the_server() -> None:
    bench = Bench()
    bench.run(ask())
    answers: list[Command] = []
    bench.toy.on_request = lambda peer, command: answers.append(command)
    (peer,) = bench.toy.inboxes
    bench.toy.push(peer)
    bench.run(ask(timeout_ms=100))
    assert [command.opaque for command in bench.pushed] == [77]
    assert [command.header(OffsetReply).offset for command in answers if command.is_response] == [5]


def test_the_same_seed_is_the_same_history_to_the_microsecond() -> None:
    def history(seed: int) -> list[tuple[int, int]]:
        bench = Bench(seed)

        def operation() -> Any:
            for _ in range(20):
                yield Gather([ask(), ask()])
            return bench.timeline.now_us, bench.timeline.steps

        return [bench.run(operation()).result()]

    assert history(5) == history(5)
    assert history(5) != history(6)


def test_users_code_that_returns_an_operation_takes_the_time_of_it() -> None:
    def slow(value: int) -> Any:
        yield from sleep(700)
        if not value:
            raise KeyError("none")
        return value

    def operation() -> Any:
        before = yield Now()
        found = [(yield Run(slow, (5,)))]
        try:
            yield Run(slow, (0,))
        except KeyError as exc:
            found.append(str(exc))
        return found, (yield Now()) - before

    found, took_ms = Bench().run(operation()).result()
    assert found == [5, "'none'"]
    assert 1_400 <= took_ms <= 1_402


def test_a_lost_connection_is_told_once_and_one_that_was_never_made_is_not() -> None:
    bench, lost = Bench(), []
    bench.calls._lost = lost.append
    bench.run(ask())
    bench.run(ask(address="10.0.0.1:9"))
    assert lost == []
    bench.network.lose(bench.network.connections("10.0.0.9")[0])
    bench.timeline.run(ms=10)
    assert lost == ["10.0.0.1:1000"]
