"""What lasts in a broker while its clock is set by an hour, forward or back; and what waits for a date all the same."""

from __future__ import annotations

import pytest

from halfmoon.wire.headers.client import GetConsumerRunningInfo
from tests.broker.consumers.test_locks import lock, queue
from tests.broker.half import CHECKS, checks, prepare, produce
from tests.broker.talk import START_MS

HOUR_MS = 3_600_000
BOTH_WAYS = pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])


@BOTH_WAYS
def test_a_connection_is_idle_for_its_time_and_no_less_and_no_longer(talk, by_ms):
    talk.connect(1)
    talk.wait(60_000)
    talk.set_clock(by_ms)
    talk.wait(59_000)
    assert talk.closed == {}
    talk.wait(32_000)  # it is looked for every 30 s
    assert 1 in talk.closed


@BOTH_WAYS
def test_a_member_is_missed_after_its_time_and_no_sooner_and_no_later(talk, by_ms):
    talk.consume("T")
    talk.wait(60_000)
    talk.set_clock(by_ms)
    talk.wait(30_000)
    talk.send("T")  # the connection is not idle
    talk.wait(29_000)
    assert talk.closed == {}
    talk.wait(12_000)  # it is looked for every 10 s
    assert talk.closed == {1: "no heartbeat"}


@BOTH_WAYS
def test_a_lock_holds_for_its_time_and_no_less_and_no_longer(talk, by_ms):
    talk.send("T")
    assert lock(talk, "a", queue(0)) == [0]
    talk.wait(30_000)
    talk.set_clock(by_ms)
    talk.wait(25_000)
    assert lock(talk, "b", queue(0), peer=2) == []
    talk.wait(6_000)
    assert lock(talk, "b", queue(0), peer=2) == [0]


@BOTH_WAYS
def test_a_pull_waits_for_its_time_and_no_less_and_no_longer(talk, by_ms):
    talk.send("T")
    assert talk.pull("T", offset=1, wait_ms=15_000) is None
    opaque = talk.opaque
    talk.wait(5_000)
    talk.set_clock(by_ms)
    talk.wait(9_900)
    assert talk.answer(opaque) is None
    talk.wait(200)
    assert talk.answer(opaque).code == 19


@BOTH_WAYS
def test_a_relayed_request_waits_for_its_time_and_no_less_and_no_longer(talk, by_ms):
    talk.consume("T", peer=1)
    opaque = talk.post(GetConsumerRunningInfo(consumer_group="G", client_id="client-1"), peer=2)
    talk.turn()
    left_ms = talk.broker.relay.due(talk.instant) - talk.instant.steady
    talk.set_clock(by_ms)
    talk.wait(left_ms - 1)
    assert talk.answer(opaque, peer=2) is None
    talk.wait(1)
    assert talk.answer(opaque, peer=2).code == 207


@BOTH_WAYS
def test_an_unsynced_send_waits_for_its_time_and_no_less_and_no_longer(make_talk, by_ms):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"}, sync_timeout_ms=5_000)
    talk.held_back = []
    assert talk.send("T") is None
    opaque = talk.opaque
    talk.set_clock(by_ms)
    talk.wait(4_900)
    assert talk.answer(opaque) is None
    talk.wait(200)
    assert talk.answer(opaque).code == 10
    talk.release()


@BOTH_WAYS
def test_producers_are_asked_in_rounds_as_far_apart_as_ever(make_talk, by_ms):
    talk = make_talk(**CHECKS)
    produce(talk, "orders")
    prepare(talk)
    talk.wait(5_100)
    assert len(checks(talk)) == 1
    talk.set_clock(by_ms)
    talk.wait(4_800)
    assert checks(talk) == []
    talk.wait(300)
    assert len(checks(talk)) == 1


def test_a_message_that_waits_for_a_date_comes_when_the_clock_says_so(talk):
    talk.send("T", b"now")
    assert talk.send("T", b"later", properties=f"TIMER_DELIVER_MS\x01{START_MS + 1_800_000}\x02").code == 0
    talk.set_clock(HOUR_MS)
    talk.wait(100)
    assert talk.broker.store.queue_max("T", 0) == 2


def test_a_step_dates_no_message_back(talk):
    talk.send("T")
    talk.set_clock(HOUR_MS)
    talk.send("T")
    assert [talk.broker.store.store_ms("T", 0, offset) for offset in (0, 1)] == [START_MS, START_MS + HOUR_MS]


def test_rates_and_running_time_are_those_of_the_time_that_passed(talk):
    talk.send("T")
    talk.wait(5_000)
    before = talk.broker.stats.recent(talk.instant.steady)
    talk.set_clock(HOUR_MS)
    assert talk.broker.stats.recent(talk.instant.steady) == before
    assert talk.broker.stats.running_ms(talk.instant.steady) == 5_000
