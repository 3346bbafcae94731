"""MemoryBus and its consumers: what comes again, and when; and what cannot be wished of a bus."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from halfmoon.errors import SystemBusy, UsageError
from halfmoon.events.testing import MemoryBus
from halfmoon.model import StoredMessage
from tests.events.memory.bus_members import Reader, half, ids, member, message


def test_what_is_not_consumed_comes_again_with_its_reason_at_the_brokers_times():
    bus = MemoryBus()
    reader = Reader(bus)
    reader.answers = [(False, "no stock"), RuntimeError("boom"), (True, "")]
    member(bus).send(message(), attempt=1, timeout_ms=1)
    start = bus.now_ms

    bus.deliver()
    assert [(one.attempt, one.reason, one.due_ms - start) for one in bus.waiting] == [(2, "no stock", 10_000)]
    bus.advance(9.9)
    assert len(reader.got) == 1
    bus.advance(0.1 + 30)

    assert reader.got == [("1", 1, None), ("1", 2, "no stock"), ("1", 3, "RuntimeError: boom")]
    assert bus.waiting == ()
    assert len(bus.consumed("S_mail")) == 1


def test_after_sixteen_further_attempts_it_is_a_dead_letter():
    bus = MemoryBus()
    reader = Reader(bus)
    reader.answers = [(False, f"no {n}") for n in range(1, 30)]
    member(bus).send(message(), attempt=1, timeout_ms=1)

    bus.advance(24 * 3600)

    assert len(reader.got) == 17
    assert [(one.group, one.reason) for one in bus.dead_letters] == [("S_mail", "no 17")]


def test_what_comes_again_waits_until_somebody_is_there():
    bus = MemoryBus()
    reader = Reader(bus)
    reader.answers = [(False, "")]
    member(bus).send(message(), attempt=1, timeout_ms=1)
    bus.deliver()
    reader.leave()

    bus.advance(3600)
    assert len(bus.waiting) == 1
    again = Reader(bus)
    bus.advance(0)

    assert again.got == [("1", 2, None)]


def test_a_consumer_may_publish_and_sees_it_in_the_same_delivery():
    bus = MemoryBus()
    transport = member(bus)

    def chain(stored: StoredMessage, attempt: int) -> tuple[bool, str]:
        number = int(stored.msg_id, 16)
        if number < 5:
            transport.send(message(number + 1), attempt=1, timeout_ms=1)
        return True, ""

    bus.subscribe("S_chain", {"TP_ORDER": ["*"]}, chain)
    transport.send(message(1), attempt=1, timeout_ms=1)

    assert bus.deliver() == 5


def test_clear_forgets_messages_and_keeps_who_takes_part():
    bus = MemoryBus()
    reader, transport = Reader(bus), member(bus)
    half(transport)
    transport.send(message(2), attempt=1, timeout_ms=1)
    bus.deliver()

    bus.clear()
    transport.send(message(3), attempt=1, timeout_ms=1)
    bus.deliver()

    assert (bus.pending, ids(bus.committed)) == ((), ["3"])
    assert [got[0] for got in reader.got] == ["2", "3"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda bus: bus.fail_next("decide"),
        lambda bus: bus.fail_next("send", times=0),
        lambda bus: bus.kill(object()),
        lambda bus: bus.kill(MemoryBus().transport("P_shop")),
        lambda bus: MemoryBus(check_interval_s=0),
        lambda bus: MemoryBus(checks_max=0),
    ],
)
def test_what_cannot_be_wished_is_refused(wrong: Callable[[MemoryBus], object]):
    with pytest.raises(UsageError):
        wrong(MemoryBus())


def test_a_bus_has_room_for_so_many_messages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("halfmoon.events.memory.broker.MESSAGES_MAX", 2)
    bus = MemoryBus()
    transport = member(bus)
    for number in (1, 2):
        transport.send(message(number), attempt=1, timeout_ms=1)

    with pytest.raises(SystemBusy, match="clear"):
        transport.send(message(3), attempt=1, timeout_ms=1)
