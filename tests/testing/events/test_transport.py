"""A publisher's transport on a MemoryBus: it posts, sends and prepares, blocking and asyncio."""

from __future__ import annotations

import asyncio

import pytest

from halfmoon.effects import Op, run, sleep, steady
from halfmoon.errors import ConnectionLost, RequestTimeout
from halfmoon.events.testing import MemoryBus, MemoryTransport
from halfmoon.model import LocalTransactionState
from tests.testing.events.test_bus import half, ids, member, message


def test_post_tells_how_it_went():
    bus, told = MemoryBus(), []
    transport = member(bus)
    bus.fail_next("send")
    for number in (1, 2):
        transport.post(message(number), lambda result, error: told.append((result, error)), timeout_ms=1)

    assert isinstance(told[0][1], RequestTimeout)
    assert told[1][0].msg_id == f"{2:032X}"

    again = message(2)
    again.attempt = 2
    transport.post(again, lambda result, error: told.append((result, error)), timeout_ms=1)
    assert told[2] == told[1], "the repeat is the same message"
    assert ids(bus.committed) == ["2"]


@pytest.mark.parametrize("on_a_loop", [False, True])
def test_it_drives_operations_whose_functions_are_called_and_on_a_loop_awaited(on_a_loop: bool) -> None:
    transport = MemoryTransport(MemoryBus(), "P_shop")

    async def later(value: int) -> int:
        await asyncio.sleep(0)
        return value + 1

    def fails() -> None:
        raise ZeroDivisionError

    def operation() -> Op[tuple[int, bool, str]]:
        begin = yield from steady()
        yield from sleep(20)
        value = yield from run(later if on_a_loop else int, 1)
        try:
            yield from run(fails)
        except ZeroDivisionError:
            return value, (yield from steady()) - begin >= 19, "thrown in"
        raise AssertionError

    found = asyncio.run(transport.run_async(operation())) if on_a_loop else transport.run(operation())
    assert found == (1 + on_a_loop, True, "thrown in")
    with pytest.raises(ZeroDivisionError):
        transport.run(run(fails))


def test_a_killed_publisher_says_nothing_and_another_of_its_group_answers():
    bus, asked = MemoryBus(), []
    first = member(bus, lambda stored: asked.append("first") or LocalTransactionState.ROLLBACK)
    prepared = half(first)
    bus.kill(first)
    first.decide(prepared, commit=False)
    with pytest.raises(ConnectionLost):
        half(first, 2)
    assert bus.check_now() == 0, "nobody is there who could be asked"
    assert bus.pending[0].checks == 0

    member(bus, lambda stored: asked.append("second") or LocalTransactionState.COMMIT)
    bus.check_now()

    assert asked == ["second"]
    assert ids(bus.committed) == ["1"]
