"""Delayed messages in batch transactions: their time begins when the batch is published, and each is parked once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halfmoon.broker.batches.records import Finished
from halfmoon.errors import SystemBusy
from halfmoon.wire.properties import encode
from halfmoon.wire.record import BatchItem, encode_batch
from tests.broker.batch import Driver, bodies, visible

LATER_MS = 60_000


@pytest.fixture
def talk(request, make_talk):
    talk = make_talk(store={"flush_disk_type": getattr(request, "param", "ASYNC_FLUSH")})
    talk.send("orders")
    return talk


def read(talk):
    """What consumers see beside the first message, by which the topic was made."""
    return bodies(talk)[1:]


def mixed(talk, count=9):
    """A piece with messages for now, for level 3 (ten seconds) and for a time, in turn."""
    asked = ({}, {"DELAY": "3"}, {"TIMER_DELIVER_MS": str(talk.now + 20_000)})
    items = [BatchItem(b"m%d" % k, encode({"UNIQ_KEY": f"k{k}", **asked[k % 3]})) for k in range(count)]
    return [f"m{k}" for k in range(count)], encode_batch(items)


def decided(talk, texts, body):
    driver = Driver(talk)
    driver.stored(0, "a", *texts, body=body)
    assert driver.vote(0, "a").result == "YES"
    assert driver.decide(0, "a")[0].result == "DECIDED"
    return driver


def test_a_delay_begins_when_the_batch_is_published(talk):
    driver = decided(talk, ["x"], encode_batch([BatchItem(b"x", encode({"DELAY": "3"}))]))
    talk.wait(60_000)
    assert driver.apply(0, "a").count == 1
    published_ms = talk.now

    talk.wait(9_999)
    assert read(talk) == []
    talk.wait(1)
    assert read(talk) == ["x"]
    assert visible(talk)[-1].store_ms == published_ms + 10_000


def test_a_time_is_kept_and_one_that_is_over_is_now(talk):
    soon, over = str(talk.now + 60_000), str(talk.now + 5_000)
    items = [BatchItem(b"soon", encode({"TIMER_DELIVER_MS": soon})), BatchItem(b"over", encode({"TIMER_DELIVER_MS": over}))]
    driver = decided(talk, ["soon", "over"], encode_batch(items))
    talk.wait(10_000)

    driver.apply(0, "a")

    assert read(talk) == ["over"]
    talk.wait(49_999)
    assert read(talk) == ["over"]
    talk.wait(1)
    assert read(talk) == ["over", "soon"]


def test_the_others_of_a_piece_are_visible_at_once_and_in_order(talk):
    driver = decided(talk, *mixed(talk))

    driver.apply(0, "a")

    assert read(talk) == ["m0", "m3", "m6"]
    talk.wait(10_000)
    assert read(talk) == ["m0", "m3", "m6", "m1", "m4", "m7"]
    talk.wait(10_000)
    assert read(talk) == ["m0", "m3", "m6", "m1", "m4", "m7", "m2", "m5", "m8"]


@pytest.mark.parametrize("talk", ["ASYNC_FLUSH", "SYNC_FLUSH"], indirect=True)
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("fails_at", [0, 1, 2, 5, 8])
def test_each_message_is_there_once_wherever_publishing_is_cut_off(talk, monkeypatch, fails_at, restarts):
    driver = decided(talk, *mixed(talk))
    append, left = talk.broker.sends.append, [fails_at]

    def refusing(topic, queue_id, drafts, now):
        if topic != "rmq_sys_HALFMOON_BATCHES":
            left[0] -= 1
            if left[0] < 0:
                raise SystemBusy("the store has no room now")
        return append(topic, queue_id, drafts, now)

    monkeypatch.setattr(talk.broker.sends, "append", refusing)
    with pytest.raises(AttributeError):  # no answer yet: it is being published
        driver.apply(0, "a")
    assert left[0] < 0
    if restarts:
        talk.broker.stop(talk.instant)
        talk.run_effects()
        talk.broker.close(talk.instant)
        talk.wait(0)
        talk.open()
    else:
        monkeypatch.setattr(talk.broker.sends, "append", append)
    talk.wait(LATER_MS)

    assert driver.apply(0, "a").result == "APPLIED"
    assert sorted(read(talk)) == [f"m{k}" for k in range(9)]


def test_what_was_delivered_before_a_restart_is_not_parked_again(talk, monkeypatch):
    driver = decided(talk, *mixed(talk))
    write = talk.broker.batches.write

    def refusing(step, now):
        if isinstance(step, Finished):
            raise SystemBusy("the store has no room now")
        write(step, now)

    monkeypatch.setattr(talk.broker.batches, "write", refusing)
    driver.apply(0, "a")
    talk.wait(60_000)
    assert len(read(talk)) == 9
    talk.restart()
    talk.wait(LATER_MS)

    assert driver.apply(0, "a").result == "APPLIED"
    assert talk.broker.batches.publishing.skipped == 9
    assert sorted(read(talk)) == [f"m{k}" for k in range(9)]


@pytest.mark.parametrize(
    "asked",
    [
        {"DELAY": "soon"},
        {"TIMER_DELIVER_MS": "soon"},
        {"TIMER_DELIVER_MS": str(10**15)},
        {"TIMER_DEL_UNIQKEY": "orders+k", "TIMER_DELIVER_MS": str(10**15)},
        {"DELAY": "3", "filling": "x" * 32_700},
    ],
)
def test_what_cannot_be_parked_is_refused_when_it_comes(talk, asked):
    driver = Driver(talk)

    assert driver.prepare(0, "a", "x", body=encode_batch([BatchItem(b"x", encode(asked))])).code == 13
    assert driver.listed().attempt_count == 0


def test_a_level_that_is_none_any_more_is_published_now(talk):
    driver = decided(talk, ["x"], encode_batch([BatchItem(b"x", encode({"DELAY": "3"}))]))
    talk.settings = replace(talk.settings, delay_levels="")
    talk.restart()

    driver.apply(0, "a")

    assert read(talk) == ["x"]


def test_a_time_that_the_timer_takes_no_more_is_published_now(talk):
    asked = encode({"TIMER_DELIVER_MS": str(talk.now + 60_000)})
    driver = decided(talk, ["x"], encode_batch([BatchItem(b"x", asked)]))
    talk.settings = replace(talk.settings, timer_enable=False)
    talk.restart()

    driver.apply(0, "a")

    assert read(talk) == ["x"]


def test_a_piece_for_which_the_timer_has_no_room_is_refused_and_what_is_decided_is_parked(make_talk):
    talk = make_talk(timer_messages_max=2)
    talk.send("orders")
    asked = encode({"TIMER_DELIVER_MS": str(talk.now + 60_000)})
    driver = decided(talk, ["x", "y"], encode_batch([BatchItem(b"x", asked), BatchItem(b"y", asked)]))

    assert driver.prepare(1, "b", "z", body=encode_batch([BatchItem(b"z", asked)] * 3)).code == 1
    assert talk.send("orders", properties=asked.decode()).code == 0
    driver.apply(0, "a")
    talk.wait(60_000)

    assert sorted(read(talk)[-2:]) == ["x", "y"]
