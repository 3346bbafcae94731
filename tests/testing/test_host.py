"""A core runs in virtual time as it runs under the runtime."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from halfmoon.effects import Gather, Run, sleep
from halfmoon.errors import ConnectionLost
from halfmoon.testing.disk import Stopped
from halfmoon.testing.host import CoreHost
from halfmoon.testing.timeline import START_MS
from tests.testing.test_driver import Bench, ask
from tests.testing.toy import Toy


def test_what_many_bytes_bring_is_handled_in_fewer_turns() -> None:
    bench = Bench(seed=4)

    def operation() -> Any:
        yield Gather([ask() for _ in range(200)])

    bench.run(operation())
    assert bench.toy.requests == 200
    assert len(bench.toy.turns) < 50


def test_work_takes_time_and_its_end_comes_in_a_turn_of_its_own() -> None:
    bench = Bench()
    bench.host.work_us = (40_000, 40_000)
    bench.toy.on_request = partial(bench.toy.answer_after_work, run=lambda: 42)

    def operation() -> Any:
        found = yield from ask()
        return found, bench.timeline.now - START_MS

    found, took_ms = bench.run(operation()).result()
    assert found == 42
    assert 40 <= took_ms < 45


def test_the_error_of_work_reaches_the_core() -> None:
    bench = Bench()

    def fail() -> int:
        raise OSError(5, "broken disk")

    bench.toy.on_request = partial(bench.toy.answer_after_work, run=fail)
    assert bench.run(ask()).result() == -1


def test_a_killed_process_is_told_nothing_more() -> None:
    bench = Bench()
    bench.host.work_us = (40_000, 40_000)
    happened: list[int] = []

    def happen() -> int:
        happened.append(1)
        return 1

    bench.toy.on_request = partial(bench.toy.answer_after_work, run=happen)
    bench.driver.start(ask(), "")
    bench.timeline.run(ms=2)
    bench.host.kill()
    bench.timeline.run(ms=100)
    assert happened == []
    assert bench.toy.left == []


def test_a_tick_comes_when_it_is_due_by_the_machines_own_clock() -> None:
    bench = Bench()
    bench.toy.due_ms = START_MS + 5_000
    bench.run(ask(), ms=1_000)
    assert bench.toy.ticks == []
    bench.host.step_clock(3_990)
    bench.timeline.run(ms=20)
    assert len(bench.toy.ticks) == 1
    assert bench.toy.ticks[0] >= START_MS + 5_000


def test_closing_a_connection_comes_after_what_was_written_and_the_core_is_told() -> None:
    bench = Bench()
    bench.toy.on_request = bench.toy.hang_up
    assert bench.run(ask()).result() == 1
    assert bench.toy.gone == [1]


def test_a_started_operation_calls_other_servers() -> None:
    bench = Bench()
    other = CoreHost(bench.timeline, bench.network, "10.0.0.2", [1], "other")
    other.boot(lambda now: Toy())
    found: list[Any] = []
    bench.toy.ask_elsewhere("10.0.0.2:1", found)
    bench.run(ask())
    assert found[0].code == 0


def test_a_clean_stop_ends_when_its_operations_and_works_have_ended() -> None:
    bench = Bench()
    done: list[str] = []

    def leave() -> Any:
        yield from sleep(30)
        yield Run(lambda: done.append("saved"))

    bench.toy.stopping = [leave()]
    bench.host.stop(lambda: done.append("left"))
    bench.timeline.run(ms=29)
    assert done == []
    bench.timeline.run(ms=5)
    assert done == ["saved", "left"]
    assert bench.host.core is None


@pytest.mark.parametrize("power", [False, True])
def test_a_machine_boots_again_and_never_uses_the_number_of_a_peer_twice(power: bool) -> None:
    bench = Bench()
    bench.run(ask())
    bench.host.kill(power=power)
    bench.timeline.run(ms=100)
    again = Toy()
    bench.host.boot(lambda now: again)
    bench.run(ask(timeout_ms=100))
    assert bench.run(ask()).result() >= 1
    assert not set(again.inboxes) & set(bench.toy.inboxes)


def test_a_process_that_its_disk_stopped_in_a_write_is_given_up_and_told_nothing_more() -> None:
    bench = Bench()
    given_up: list[str] = []

    def stop_in_a_write(peer: int, request: object) -> None:
        raise Stopped("commitlog/0")

    def on_stopped() -> None:
        given_up.append("stopped")
        bench.host.kill()

    bench.host.on_stopped = on_stopped
    bench.toy.on_request = stop_in_a_write
    task = bench.run(ask())
    assert given_up == ["stopped"]
    assert isinstance(task.error, ConnectionLost)
    assert bench.host.core is None
