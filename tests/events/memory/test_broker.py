"""MemoryBus as a transport and a broker: what it stores, merges, loses, decides and asks."""

from __future__ import annotations

import pytest

from halfmoon.errors import ConnectFailed, RequestTimeout, SystemBusy, UsageError
from halfmoon.events.testing import MemoryBus
from tests.events.memory.bus_members import COMMIT, UNKNOWN, Reader, half, ids, member, message

# ---------------------------------------------------------------- sending


def test_a_plain_message_is_seen_by_each_group_once():
    bus = MemoryBus()
    mail, stock = Reader(bus), Reader(bus, "S_stock")
    result = member(bus).send(message(), attempt=1, timeout_ms=1)

    assert bus.deliver() == 2
    assert bus.deliver() == 0
    assert mail.got == stock.got == [("1", 1, None)]
    assert result.msg_id == f"{1:032X}"
    assert [event.payload for event in bus.events("TP_ORDER", "EC_PAID")] == [{"n": 1}]
    assert bus.events("TP_ORDER", "EC_OTHER") == []
    assert [event.id[-1] for event in bus.consumed("S_mail")] == ["1"]
    assert bus.consumed("S_nobody") == []


def test_a_group_gets_the_codes_it_asks_for_and_its_members_take_turns():
    bus = MemoryBus()
    transport = member(bus)
    one, two = Reader(bus, codes="EC_PAID || EC_SENT"), Reader(bus, codes="EC_PAID || EC_SENT")
    for number, code in enumerate(["EC_PAID", "EC_NEW", "EC_SENT", "EC_PAID", "EC_PAID"], 1):
        transport.send(message(number, code=code), attempt=1, timeout_ms=1)

    bus.deliver()

    assert sorted(one.got + two.got) == [("1", 1, None), ("3", 1, None), ("4", 1, None), ("5", 1, None)]
    assert len(one.got) == len(two.got) == 2


@pytest.mark.parametrize(("stored", "left"), [(True, 1), (False, 0)])
def test_a_send_whose_answer_or_request_is_lost(stored: bool, left: int):
    bus = MemoryBus()
    transport = member(bus)
    bus.fail_next("send", stored=stored)

    with pytest.raises(RequestTimeout):
        transport.send(message(), attempt=1, timeout_ms=1)

    assert len(bus.committed) == left
    transport.send(message(), attempt=2, timeout_ms=1)
    assert len(bus.committed) == 1, "the repeat was merged with the first, or was the first"
    transport.send(message(), attempt=1, timeout_ms=1)
    assert len(bus.committed) == 2, "a repeat that does not say so is another message"


def test_faults_come_in_the_order_in_which_they_were_wished_and_heal_ends_them():
    bus = MemoryBus()
    transport = member(bus)
    bus.fail_next("send", error=SystemBusy("full"))
    bus.fail_next("send", times=2)
    seen = []
    for number in range(3):
        with pytest.raises((SystemBusy, RequestTimeout)) as caught:
            transport.send(message(number), attempt=1, timeout_ms=1)
        seen.append(type(caught.value))
        if number == 1:
            bus.heal()
            break

    assert seen == [SystemBusy, RequestTimeout]
    transport.send(message(9), attempt=1, timeout_ms=1)
    assert ids(bus.committed) == ["9"]


def test_a_bus_that_is_down_takes_checks_and_gives_nothing():
    bus = MemoryBus()
    reader, transport = Reader(bus), member(bus, lambda stored: COMMIT)
    prepared = half(transport)
    transport.leave(prepared)
    transport.send(message(2), attempt=1, timeout_ms=1)
    bus.go_down()

    with pytest.raises(ConnectFailed):
        half(transport, 3)
    transport.decide(prepared, commit=False)
    assert bus.check_now() == bus.deliver() == 0
    assert ids(bus.pending) == ["1"]
    assert reader.got == []

    bus.heal()
    assert bus.check_now() == 1
    assert bus.deliver() == 2


# ---------------------------------------------------------------- two phases


def test_repeats_of_a_decision_are_ignored_and_contradictions_refused_and_counted():
    bus = MemoryBus()
    transport = member(bus)
    prepared = half(transport)
    for commit in (True, True, False):
        transport.decide(prepared, commit=commit)

    assert [bus.event(one).transactional for one in bus.committed] == [True]
    assert (bus.repeats, bus.contradictions) == (1, 1)
    assert len(bus.events()) == 1


def test_a_message_that_expired_can_be_resumed_and_no_other():
    bus, answers = MemoryBus(checks_max=3), [UNKNOWN] * 3 + [COMMIT]
    transport = member(bus, lambda stored: answers.pop(0))
    transport.leave(half(transport))
    bus.advance(6 + 3 * 60)
    assert ids(bus.expired) == ["1"]

    bus.resume(bus.expired[0])
    bus.advance(6)

    assert ids(bus.committed) == ["1"]
    with pytest.raises(UsageError):
        bus.resume(bus.committed[0])


def test_without_anybody_to_ask_a_message_expires_when_its_time_is_over():
    bus = MemoryBus()
    transport = member(bus)
    half(transport)
    bus.kill(transport)

    bus.advance(71 * 3600)
    assert (ids(bus.pending), bus.checks_sent) == (["1"], 0)
    bus.advance(2 * 3600)
    assert ids(bus.expired) == ["1"]


def test_no_check_comes_before_a_messages_own_age():
    bus = MemoryBus()
    transport = member(bus, lambda stored: COMMIT)
    for number, after in ((1, None), (2, 60)):
        transport.leave(transport.prepare(message(number), attempt=1, timeout_ms=1, check_after_s=after))

    bus.advance(5.9)
    assert bus.checks_sent == 0
    bus.advance(0.2)
    assert ids(bus.committed) == ["1"]
    bus.advance(60)
    assert ids(bus.committed) == ["1", "2"]
