"""Delayed redeliveries are counted by group: while they wait, after a start, and none that was delivered."""

from __future__ import annotations

from halfmoon.broker.delay import redeliveries
from halfmoon.broker.names import SCHEDULE_TOPIC
from halfmoon.wire.bodies import KVTable, from_json
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.topic import DeleteTopicInBroker, TrimTopic
from tests.broker.consumers.test_redelivery import back, consuming, sent
from tests.broker.delay.test_delay import send
from tests.broker.half import stored

RETRY = "%RETRY%G"


def given_back(talk, count=1, level=0):
    consuming(talk)
    for _ in range(count):
        assert talk.ask(back(sent(talk).physical_offset, level=level)).code == 0


def read_all(talk):
    while talk.broker.delays.redeliveries.due is not None:
        talk.wait(1)


def counted_anew(talk, warn=lambda *line: None):
    broker = talk.broker
    return redeliveries.DelayedRedeliveries(broker.store, broker.delays.level_queues, warn, talk.instant.steady)


def waiting(talk, topic=RETRY):
    return talk.broker.delays.redeliveries.count(topic)


def test_messages_that_are_given_back_are_counted_until_they_are_delivered(talk):
    assert waiting(talk) == 0
    given_back(talk, 2)
    talk.wait(6_000)
    given_back(talk, 1)
    send(talk, 3)  # delayed for another reason

    assert waiting(talk) == 3
    talk.wait(5_000)
    assert waiting(talk) == 1
    talk.wait(10_000)
    assert waiting(talk) == 0
    assert talk.broker.progress.redelivery("G") == 3, "they wait in the retry topic now"


def test_a_start_counts_what_waits_from_the_log(talk, monkeypatch):
    monkeypatch.setattr(redeliveries, "READ_AT_ONCE", 2)
    given_back(talk, 5)
    given_back(talk, 4, level=9)
    send(talk, 9)
    talk.wait(11_000)
    assert waiting(talk) == 4

    talk.restart()
    assert waiting(talk) is None
    assert talk.broker.progress.redelivery("G") is None
    given_back(talk, 1)
    read_all(talk)

    assert waiting(talk) == 5


def test_messages_to_a_retry_topic_that_is_deleted_still_wait_for_they_make_it_again(talk):
    given_back(talk, 3)
    talk.ask(DeleteTopicInBroker(topic=RETRY))
    assert waiting(talk) == 3
    talk.wait(11_000)

    assert (waiting(talk), talk.broker.progress.redelivery("G")) == (0, 3)


def test_offsets_of_delivered_messages_are_removed_while_others_come(talk, monkeypatch):
    monkeypatch.setattr(redeliveries, "_PRUNED_FROM", 4)
    for _ in range(20):
        given_back(talk, 1, level=1)
        talk.wait(500)

    assert len(talk.broker.delays.redeliveries._offsets[RETRY, 1]) <= 5
    assert waiting(talk) == 1


def test_groups_for_which_nothing_waits_any_more_are_forgotten(talk, monkeypatch):
    monkeypatch.setattr(redeliveries, "_SWEPT_FROM", 2)
    counted = counted_anew(talk)
    for number in range(10):
        counted.parked(f"%RETRY%G{number}", 1, number)
        talk.broker.delays.level_queues[1].offset = number + 1

    assert len(counted._offsets) <= 2
    counted.parked("%RETRY%G", 1, 10)
    assert (counted.count("%RETRY%G"), counted.count("%RETRY%G9")) == (1, 0)
    talk.broker.delays.level_queues[1].offset = 0


def test_a_tick_after_a_start_reads_a_bounded_number_of_bytes(talk, monkeypatch):
    given_back(talk, 3)
    monkeypatch.setattr(redeliveries, "READ_BYTES_AT_ONCE", 1)
    counted, ticks = counted_anew(talk), 0
    while (due := counted.due) is not None:
        counted.read(due)
        ticks += 1

    assert (ticks, counted.count(RETRY)) == (3, 3)


def test_messages_of_the_retry_topic_that_are_gone_do_not_wait(talk):
    given_back(talk, 3)
    talk.wait(11_000)
    assert talk.broker.progress.redelivery("G") == 3

    talk.ask(TrimTopic(topic=RETRY, offset=2))

    assert talk.broker.progress.redelivery("G") == 1


def test_a_broker_pauses_between_reads_after_a_start(talk, monkeypatch):
    monkeypatch.setattr(redeliveries, "READ_AT_ONCE", 1)
    given_back(talk, 3)
    counted, begin = counted_anew(talk), talk.instant.steady
    times = []
    while (due := counted.due) is not None:
        times.append(due - begin)
        counted.read(due - 1)
        counted.read(due)

    assert times == [0, redeliveries.READ_PAUSE_MS, 2 * redeliveries.READ_PAUSE_MS]
    talk.restart()
    talk.wait(0)
    assert talk.broker.delays.due(talk.instant) >= talk.instant.steady + 1, "no tick without a pause"


def test_a_damaged_message_still_counts_for_its_group_and_is_logged_once(talk):
    given_back(talk, 3)
    lines = []
    place = stored(talk, SCHEDULE_TOPIC, 2)[1].physical_offset
    talk.broker.store.log.segments.write(place + 88, b"!")  # in its body
    counted = counted_anew(talk, lambda text, *values: lines.append(text % values))
    while (due := counted.due) is not None:
        counted.read(due)

    assert (counted.count(RETRY), counted.fault) == (3, None)
    [line] = lines
    assert f"level=3 offset=1 position={place} topic={RETRY} reason=record at {place}: the body's CRC is wrong" in line


def test_damaged_messages_of_which_nobody_knows_whose_they_are_are_a_fault_of_the_broker_until_they_are_passed_over(talk, caplog):
    given_back(talk, 3)
    record = stored(talk, SCHEDULE_TOPIC, 2)[1]
    talk.broker.store.log.segments.write(record.physical_offset + 4, b"\xff")  # its magic
    talk.restart()
    read_all(talk)

    faults = from_json(KVTable, talk.ask(GetBrokerRuntimeInfo()).body).table["brokerFaults"]
    assert faults == "delayed messages that cannot be read, and will not be delivered: 1"
    assert waiting(talk) == 2
    assert caplog.text.count("topic=unknown") == 1
    talk.wait(11_000)
    assert "brokerFaults" not in from_json(KVTable, talk.ask(GetBrokerRuntimeInfo()).body).table
