"""MemoryBus as a transport and a broker: what it stores, merges, loses, decides and asks."""

from __future__ import annotations

import pytest

from halfmoon.errors import BrokerError, ConnectFailed, NotRunning, RequestTimeout, SystemBusy, UsageError
from halfmoon.events.testing import MemoryBus
from halfmoon.model import LocalTransactionState, StoredMessage
from tests.events.memory.bus_members import COMMIT, OPEN, ROLLBACK, UNKNOWN, Reader, half, ids, member, message

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


def test_a_group_of_which_nobody_is_there_gets_what_was_published_meanwhile_or_not_as_it_wishes():
    bus = MemoryBus()
    transport = member(bus)
    transport.send(message(1), attempt=1, timeout_ms=1)
    kept, fresh = Reader(bus, "S_kept"), Reader(bus, "S_fresh", from_end=["TP_ORDER"])
    kept.leave()
    fresh.leave()
    transport.send(message(2), attempt=1, timeout_ms=1)
    kept, fresh = Reader(bus, "S_kept"), Reader(bus, "S_fresh", from_end=["TP_ORDER"])
    transport.send(message(3), attempt=1, timeout_ms=1)

    bus.deliver()

    assert [got[0] for got in kept.got] == ["1", "2", "3"]
    assert [got[0] for got in fresh.got] == ["3"]


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


def test_a_repeat_that_does_not_say_so_is_another_message():
    bus = MemoryBus()
    transport = member(bus)
    for _ in range(2):
        transport.send(message(), attempt=1, timeout_ms=1)

    assert len(bus.committed) == 2


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


def test_a_half_message_is_seen_once_it_is_committed_and_never_when_it_is_rolled_back():
    bus = MemoryBus()
    reader, transport = Reader(bus), member(bus)
    good, bad, open_ = half(transport, 1), half(transport, 2), half(transport, 3)
    assert bus.deliver() == 0

    transport.decide(good, commit=True)
    transport.decide(bad, commit=False)
    bus.deliver()

    assert [got[0] for got in reader.got] == ["1"]
    assert (ids(bus.committed), ids(bus.rolled_back), ids(bus.pending)) == (["1"], ["2"], ["3"])
    assert open_.message_id == f"{3:032X}"
    assert bus.event(bus.pending[0]).transactional


def test_repeats_of_a_decision_are_ignored_and_contradictions_refused_and_counted():
    bus = MemoryBus()
    transport = member(bus)
    prepared = half(transport)
    for commit in (True, True, False):
        transport.decide(prepared, commit=commit)

    assert ids(bus.committed) == ["1"]
    assert (bus.repeats, bus.contradictions) == (1, 1)
    assert len(bus.events()) == 1


def test_a_lost_second_phase_is_made_up_for_by_a_check():
    bus = MemoryBus()
    transport = member(bus, lambda stored: COMMIT if stored.msg_id.endswith("1") else ROLLBACK)
    bus.lose_second_phase(2)
    for number in (1, 2, 3):
        transport.decide(half(transport, number), commit=number != 2)
    assert (ids(bus.pending), ids(bus.committed)) == (["1", "2"], ["3"])

    assert bus.check_now() == 2

    assert (ids(bus.committed), ids(bus.rolled_back), ids(bus.pending)) == (["1", "3"], ["2"], [])


def test_a_check_of_a_transaction_that_runs_here_is_not_answered_by_others_code():
    bus, asked = MemoryBus(), []
    transport = member(bus, lambda stored: asked.append(stored) or ROLLBACK)
    prepared = half(transport)

    assert bus.check_now() == 1
    assert asked == []
    assert ids(bus.pending) == ["1"]
    transport.leave(prepared)
    bus.check_now()
    assert ids(bus.rolled_back) == ["1"]


@pytest.mark.parametrize("stored", [True, False])
def test_a_half_message_whose_answer_is_lost_is_merged_with_its_repeat(stored: bool):
    bus = MemoryBus()
    transport = member(bus)
    bus.fail_next("prepare", stored=stored)
    with pytest.raises(RequestTimeout):
        half(transport)
    assert len(bus.pending) == stored

    transport.decide(half(transport, attempt=2), commit=True)

    assert ids(bus.committed) == ["1"]
    assert bus.pending == ()


def test_a_repeat_of_what_was_rolled_back_is_refused():
    bus = MemoryBus()
    transport = member(bus)
    transport.decide(half(transport), commit=False)

    with pytest.raises(BrokerError, match="was rolled back: send it under a new id"):
        half(transport, attempt=2)


def test_only_publishers_of_the_group_are_asked():
    bus = MemoryBus()
    transport = member(bus)
    other = bus.transport("P_other")
    other.start(lambda stored: COMMIT)
    transport.leave(half(transport))
    transport.close(0)

    assert bus.check_now() == 0
    with pytest.raises(NotRunning):
        half(transport, 2)


def test_a_check_that_raises_decides_nothing():
    bus = MemoryBus()

    def answer(stored: StoredMessage) -> LocalTransactionState:
        raise OSError("no database")

    transport = member(bus, answer)
    transport.leave(half(transport))

    assert bus.check_now() == 1
    assert ids(bus.pending) == ["1"]


def test_after_so_many_checks_a_message_expires_and_can_be_resumed():
    bus, answers = MemoryBus(checks_max=3), [UNKNOWN] * 3 + [COMMIT]
    transport = member(bus, lambda stored: answers.pop(0))
    prepared = half(transport)
    transport.leave(prepared)
    bus.advance(6 + 2 * 60)
    assert (bus.pending[0].checks, bus.checks_sent) == (3, 3)
    bus.advance(60)
    assert ids(bus.expired) == ["1"]

    bus.resume(bus.expired[0])
    bus.advance(6)

    assert ids(bus.committed) == ["1"]
    with pytest.raises(UsageError):
        bus.resume(bus.committed[0])


@pytest.mark.parametrize("resumed", [False, True])
def test_a_commit_that_comes_after_expiry_is_honoured_once(resumed: bool):
    bus = MemoryBus(checks_max=1)
    reader = Reader(bus)
    transport = member(bus)
    prepared = half(transport)
    transport.leave(prepared)
    bus.advance(6 + 60)
    assert ids(bus.expired) == ["1"]
    if resumed:
        bus.resume(bus.expired[0])

    transport.decide(prepared, commit=True)
    transport.decide(prepared, commit=True)
    transport.decide(prepared, commit=False)
    bus.advance(3600)

    assert ids(bus.committed) == ["1"]
    assert bus.contradictions == 1
    assert len(reader.got) == 1


def test_a_rollback_that_comes_after_expiry_is_final():
    bus = MemoryBus(checks_max=1)
    transport = member(bus)
    prepared = half(transport)
    transport.leave(prepared)
    bus.advance(6 + 60)
    transport.decide(prepared, commit=False)
    transport.decide(prepared, commit=True)

    assert (ids(bus.rolled_back), bus.contradictions) == (["1"], 1)


def test_a_transaction_that_is_open_for_hours_is_not_expired():
    bus, answers = MemoryBus(), [OPEN]
    other = member(bus, lambda stored: answers[0])
    running = bus.transport("P")
    running.start(lambda stored: UNKNOWN)
    prepared = half(running)

    bus.advance(10 * 3600)
    assert bus.checks_sent == 600
    assert ids(bus.pending) == ["1"]
    running.decide(prepared, commit=True)
    assert ids(bus.committed) == ["1"]
    assert other.answers


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
