"""Real sockets, a small core of our own: an echo that answers each turn once."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from halfmoon.effects import Signal, Start, Work, Write, now, wait
from halfmoon.instant import Steady
from halfmoon.metrics import TurnTimes
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.server import server
from halfmoon.runtime.server.addresses import address_text
from halfmoon.runtime.server.connection import ENDING_LOOK_S, READ_MAX_BYTES
from halfmoon.runtime.server.server import Server
from tests.runtime.server.echo import Echo, SmallDriver, serving
from tests.waiting import soon

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> Any:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


async def test_bytes_come_back_and_the_core_hears_of_coming_and_going() -> None:
    core = Echo()
    async with serving(core) as (_, (host, port)):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        mine = address_text(writer.get_extra_info("sockname"))
        writer.close()
        await soon(lambda: ("lost", 1) in core.told)
    assert core.told == ["start", ("connected", 1, mine), ("lost", 1), "stop"]


async def test_a_turn_is_timed_with_its_replies() -> None:
    core, took = Echo(), []

    def slow(peer: int, data: bytes) -> list[Any]:
        time.sleep(0.03)
        return [Write(peer, [data])]

    core.answer = slow
    async with serving(core) as (server, (host, port)):
        server.on_turn, server.turn_times = took.append, (times := TurnTimes())
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"hello")
        await reader.readexactly(5)
        writer.close()
        await soon(lambda: ("lost", 1) in core.told)
    assert max(took) >= 30
    assert sum(times.counts) == len(took) > dict(times.buckets())[2**24 / 1e9], "one took longer than 17 ms"
    assert times.total >= max(took) * 1_000_000


async def test_one_commit_handles_what_several_connections_brought_in_a_turn() -> None:
    core = Echo()
    async with serving(core) as (_, address):
        socks = [socket.create_connection(address) for _ in range(20)]
        await soon(lambda: len(core.told) == 21)
        for sock in socks:  # the loop does not run in between: all wait in the kernel
            sock.sendall(b"x")
        await soon(lambda: sum(map(len, core.commits)) == 20)
        for sock in socks:
            sock.close()
    assert len(core.commits) == 1


async def test_a_connection_that_sends_megabytes_has_others_read_first() -> None:
    core = Echo()
    core.answer = lambda peer, data: []
    async with serving(core) as (_, address):
        loud, quiet = (socket.create_connection(address) for _ in range(2))
        await soon(lambda: len(core.told) == 3)
        for sock in (loud, quiet):
            sock.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                loud.send(bytes(1 << 20))
        quiet.send(b"x")
        await soon(lambda: any(peer == 2 for commit in core.commits for peer, _ in commit))
        brought = [(peer, len(data)) for commit in core.commits for peer, data in commit]
        before = sum(size for peer, size in brought[: brought.index((2, 1))])
        assert before < 2 * READ_MAX_BYTES
        await soon(lambda: sum(len(data) for commit in core.commits for _, data in commit) > 2 * READ_MAX_BYTES)
        loud.close()
        quiet.close()


async def test_a_core_that_has_more_to_do_has_others_read_first() -> None:
    core = Echo()
    left, commit = [], core.commit

    def endless(now: int) -> bool:
        left.append(now)
        commit(now)
        return len(left) < 10_000

    core.commit = endless  # type: ignore[method-assign]
    async with serving(core) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert len(left) < 10_000
        await soon(lambda: len(left) >= 10_000)
        writer.close()


async def test_the_address_is_known_before_the_core_starts_and_nobody_is_accepted_before() -> None:
    core = Echo()
    server = Server(core, [("127.0.0.1", 0), ("127.0.0.1", 0)], Clock())
    bound = await server.bind()
    assert core.told == []
    assert len({port for _, port in bound} - {0}) == 2
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound[0], timeout=1)
    assert await server.start() == bound
    socket.create_connection(bound[1], timeout=1).close()
    await server.stop()


async def test_a_taken_port_is_an_error_that_leaves_nothing_open() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        free = chosen.getsockname()
    server = Server(Echo(), [free, taken.getsockname()], Clock())
    with pytest.raises(OSError):
        await server.start()
    taken.close()
    with socket.socket() as again:
        again.bind(free)


async def test_an_aborted_server_tells_its_core_nothing_more_and_cuts_its_connections() -> None:
    core = Echo()
    async with serving(core) as (server, (host, port)):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        told = list(core.told)
        writer.write(b"unheard")
        await server.abort()
        with suppress(ConnectionResetError):  # for what nobody read
            assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port), timeout=1)
    assert core.told == told


async def test_a_server_that_never_started_gives_its_ports_back_when_it_is_aborted() -> None:
    server = Server(Echo(), [("127.0.0.1", 0)], Clock())
    first = (await server.bind())[0]
    second = await server.take("127.0.0.1", 0)
    await server.abort()
    for address in (first, second):
        socket.create_server(address).close()


async def test_small_packets_are_not_held_back() -> None:
    core = Echo()
    async with serving(core) as (server, address):
        _, writer = await asyncio.open_connection(*address)
        await soon(lambda: server._connections)
        (connection,) = server._connections.values()
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        writer.close()


async def test_a_half_closed_connection_still_gets_its_answer() -> None:
    core = Echo()
    async with serving(core) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"last words")
        writer.write_eof()
        assert await reader.read(-1) == b"last words"
        await soon(lambda: ("lost", 1) in core.told)
        writer.close()


async def test_a_half_closed_connection_whose_requests_wait_is_open_until_they_are_answered() -> None:
    core = Echo()
    core.waiting.add(1)
    core.answer = lambda peer, data: []
    async with serving(core) as (server, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"much")
        writer.write_eof()
        await soon(lambda: core.commits)
        for _ in range(3):
            await asyncio.sleep(ENDING_LOOK_S)
        assert ("lost", 1) not in core.told
        core.left.append(Write(1, [b"last answer"]))
        server.wake()
        await soon(lambda: not core.left)  # a core forgets a request once its answer is among the effects
        core.waiting.clear()
        assert await reader.read(-1) == b"last answer"
        await soon(lambda: ("lost", 1) in core.told)
        writer.close()


async def test_a_half_closed_connection_that_is_behind_with_reading_gets_the_answers_that_still_wait() -> None:
    core = Echo()
    core.waiting.add(1)
    large = bytes(16 * 1024 * 1024)
    core.answer = lambda peer, data: []
    async with serving(core) as (server, address):
        sock = socket.create_connection(address)
        sock.sendall(b"much")
        sock.shutdown(socket.SHUT_WR)
        await soon(lambda: core.commits)
        await asyncio.sleep(ENDING_LOOK_S)
        core.left.append(Write(1, [large]))
        server.wake()
        await soon(lambda: ("slow", 1) in core.told)
        for _ in range(3):
            await asyncio.sleep(ENDING_LOOK_S)
        core.left.append(Write(1, [b"last answer"]))
        server.wake()
        core.waiting.clear()
        sock.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=sock)
        assert await reader.read(-1) == large + b"last answer"
        writer.close()


async def test_bytes_sent_right_before_a_close_are_committed_before_the_loss_is_told() -> None:
    core = Echo()
    seen: list[int] = []

    def answer(peer: int, data: bytes) -> list[Any]:
        seen.append(len(core.told))
        return []

    core.answer = answer
    async with serving(core) as (_, address):
        sock = socket.create_connection(address)
        sock.sendall(b"one-way")
        sock.close()
        await soon(lambda: ("lost", 1) in core.told)
    assert seen == [2]  # after start and connected, before lost


async def test_the_core_is_ticked_when_it_is_due_and_not_before() -> None:
    core = Echo()
    clock = Clock()
    core.due_at = wanted = Steady(clock.steady() + 60)
    async with serving(core):
        await soon(lambda: core.ticks)
    assert wanted <= core.ticks[0] < wanted + 30_000


class Machine:
    """A machine whose clock can be set."""

    def __init__(self) -> None:
        self.set_ms = 0
        self.clock = Clock(lambda: time.time_ns() + self.set_ms * 1_000_000)


async def test_what_waits_for_a_date_comes_soon_after_the_clock_was_set_past_it_though_nobody_asks_for_anything() -> None:
    core, machine = Echo(), Machine()
    core.due_ms = machine.clock.now() + 1_800_000
    async with serving(core, machine.clock) as (server, _):
        server.turn()
        assert core.ticks == []
        machine.set_ms += 3_600_000
        begin = time.monotonic()
        await soon(lambda: core.ticks)
        assert time.monotonic() - begin < 20


async def test_a_timer_that_was_set_before_the_clock_was_set_forward_does_not_keep_what_is_due_sooner() -> None:
    core, machine = Echo(), Machine()
    core.due_ms = machine.clock.now() + 900
    async with serving(core, machine.clock) as (server, _):
        server.turn()
        machine.set_ms += 3_600_000
        core.due_ms = machine.clock.now() + 50
        server.wake()
        begin = time.monotonic()
        await soon(lambda: core.ticks)
        assert time.monotonic() - begin < 0.7


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000])
async def test_what_lasts_lasts_as_long_while_the_clock_is_set(by_ms: int) -> None:
    core, machine = Echo(), Machine()
    async with serving(core, machine.clock) as (server, _):
        core.due_at = machine.clock.instant().steady + 400
        server.turn()
        begin = time.monotonic()
        machine.set_ms += by_ms
        server.turn()
        await soon(lambda: core.ticks)
        assert 0.35 < time.monotonic() - begin < 30


async def test_the_log_says_once_that_the_clock_was_set_forward(caplog: pytest.LogCaptureFixture) -> None:
    core, machine = Echo(), Machine()
    async with serving(core, machine.clock) as (server, _):
        machine.set_ms += 3_600_000
        for _ in range(2):
            core.due_at = machine.clock.instant().steady
            server.turn()
            await soon(lambda: core.due_at is None)
    [said] = [record.message for record in caplog.records if "clock" in record.message]
    assert said.startswith("the system's clock was set forward by 3600.")


async def test_the_log_says_once_that_the_clock_was_set_back_while_it_catches_up(caplog: pytest.LogCaptureFixture) -> None:
    core, machine = Echo(), Machine()
    async with serving(core, machine.clock) as (server, _):
        machine.set_ms -= 3_600_000
        server.turn()
        before = machine.clock.ahead_ns
        await soon(lambda: (server.turn(), machine.clock.ahead_ns < before - 2_500_000_000)[1])
        core.due_at = machine.clock.instant().steady
        server.turn()
        await soon(lambda: core.due_at is None)
    said = [record.message for record in caplog.records if "clock" in record.message]
    assert said == ["the system's clock was set back: the server's clock runs at half speed until it has caught up"]


async def test_an_earlier_deadline_replaces_a_later_one() -> None:
    core = Echo()
    clock = Clock()
    core.due_ms = clock.now() + 600_000
    async with serving(core) as (server, _):
        server.turn()
        core.due_ms = clock.now() + 20
        server.wake()
        await soon(lambda: core.ticks)


async def test_work_waits_in_a_thread_and_its_end_comes_back_into_the_loop() -> None:
    core = Echo()
    ran: list[threading.Thread] = []

    def run() -> int:
        ran.append(threading.current_thread())
        return 7

    ends: list[tuple[Any, threading.Thread]] = []

    def done(outcome: Any, now: int) -> None:
        ends.append((outcome, threading.current_thread()))
        core.left.append(Write(1, [b"synced"]))

    core.answer = lambda peer, data: [Work(run, done, data == b"inline")]
    async with serving(core) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        for data in (b"thread", b"inline"):
            writer.write(data)
            assert await reader.readexactly(6) == b"synced"
        writer.close()
    main = threading.current_thread()
    assert [thread is main for thread in ran] == [False, True]
    assert [(outcome, thread is main) for outcome, thread in ends] == [(7, True), (7, True)]


async def test_a_failed_work_hands_its_error_to_the_core() -> None:
    core = Echo()
    ends: list[Any] = []

    def fail() -> None:
        raise OSError(28, "No space left on device")

    async with serving(core) as (server, _):
        core.left += [
            Work(fail, lambda outcome, now: ends.append(outcome)),
            Work(fail, lambda outcome, now: ends.append(outcome), True),
        ]
        server.wake()
        await soon(lambda: len(ends) == 2)
    assert all(isinstance(end, OSError) for end in ends)


async def test_a_core_that_fails_in_a_turn_goes_on_with_the_next(caplog: pytest.LogCaptureFixture) -> None:
    core = Echo()

    def answer(peer: int, data: bytes) -> list[Any]:
        if data == b"bad":
            core.fed = []
            raise ValueError("a mistake of ours")
        return [Write(peer, [data])]

    core.answer = answer
    async with serving(core) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"bad")
        await soon(lambda: "a mistake of ours" in caplog.text)
        writer.write(b"good")
        assert await reader.readexactly(4) == b"good"
        writer.close()


async def test_what_waits_when_a_turn_fails_has_another_that_comes_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    core = Echo()
    commit, failures = core.commit, [ValueError("a mistake of ours")] * 2

    def failing(now: int) -> bool:
        if core.fed and failures:
            raise failures.pop()
        return commit(now)

    core.commit = failing  # type: ignore[method-assign]
    async with serving(core) as (running, address):
        running.failed_turn_s = 0.05
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
    assert caplog.text.count("a turn of the core failed") == 2


async def test_no_turn_comes_after_the_stop() -> None:
    core = Echo()
    async with serving(core) as (running, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        await running.stop()
        core.commit = lambda now: core.told.append("commit") or False  # type: ignore[method-assign,func-returns-value]
        running.wake()
        running.turn()
        await asyncio.sleep(0.01)
        writer.close()
    assert core.told[-1] != "commit"


async def test_the_end_of_a_work_that_outlasts_the_stop_is_not_told_and_can_be_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    core, begun, may_end, ended, told = Echo(), threading.Event(), threading.Event(), list[Any](), list[Any]()
    async with serving(core) as (running, _):
        core.left.append(Work(lambda: begun.set() or ended.append(may_end.wait(30)), lambda *end: told.append(end), name="a sync"))
        running.wake()
        await soon(begun.is_set)
        await running.stop(0)
        joining = asyncio.create_task(asyncio.to_thread(running.join))
        assert ended == []
        may_end.set()
        await joining
        assert ended == [True]
        await soon(lambda: "a sync" in caplog.text)
    assert told == []


async def test_a_started_operation_is_driven_and_each_of_its_steps_is_followed_by_a_turn() -> None:
    core = Echo()
    results: list[Any] = []

    def operation() -> Any:
        results.append((yield from now()))
        core.left.append(Work(lambda: 1, lambda outcome, now: results.append(outcome), True))

    async with serving(core) as (server, _):
        core.left.append(Start(operation(), "register"))
        server.wake()
        await soon(lambda: len(results) == 2)
    assert results[1] == 1


async def test_a_clean_stop_drives_the_last_operations_and_the_works_they_wait_for() -> None:
    core = Echo()
    synced = Signal()
    order: list[str] = []

    def finish() -> Any:
        core.left.append(Work(lambda: order.append("sync"), lambda outcome, now: synced.fire()))
        yield from wait(synced)
        order.append("closed")
        core.left.append(Work(lambda: order.append("saved"), lambda outcome, now: None))

    core.endings = [finish()]
    async with serving(core):
        pass
    assert order == ["sync", "closed", "saved"]


async def test_a_stop_that_cannot_end_is_left_after_its_bound() -> None:
    core = Echo()

    def never() -> Any:
        yield from wait(Signal())

    core.endings = [never()]
    clock = Clock()
    server = Server(core, [("127.0.0.1", 0)], clock, SmallDriver(clock))
    await server.start()
    async with asyncio.timeout(60):
        await server.stop(50)


async def test_nobody_is_connected_after_a_stop() -> None:
    core = Echo()
    async with serving(core) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        await soon(lambda: len(core.told) == 2)
    assert await reader.read(1) == b""
    writer.close()
    with pytest.raises(OSError):
        socket.create_connection(address, timeout=1)


def test_every_bound_has_room_for_the_largest_frame() -> None:
    assert struct.calcsize("i") + 16 * 1024 * 1024 < server.WRITE_MAX_BYTES
