"""A publisher's transport on a MemoryBus: it posts, sends and prepares, blocking and asyncio."""

from __future__ import annotations

import pytest

from halfmoon.errors import ConnectionLost, RequestTimeout
from halfmoon.events.testing import MemoryBus
from halfmoon.model import LocalTransactionState
from tests.testing.test_bus import half, ids, member, message


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


async def test_the_asyncio_face_does_the_same():
    bus = MemoryBus()
    transport = member(bus)
    await transport.send_async(message(1), attempt=1, timeout_ms=1)
    prepared = await transport.prepare_async(message(2), attempt=1, timeout_ms=1, check_after_s=None)
    transport.decide(prepared, commit=True)

    assert ids(bus.committed) == ["1", "2"]


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
