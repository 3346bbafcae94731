"""What waits for its time is listed by broker and page, and the progress of the levels is told."""

from halfmoon.broker.delay.delay import COPIED_MS
from halfmoon.store.entries import entries_at
from halfmoon.wire.bodies import DelayedMessages, DelayOffsetTable, TimerCheckpoint, from_json
from halfmoon.wire.bodies.delays import parse_recall_handle
from halfmoon.wire.headers.delay import GetAllDelayOffset, GetTimerCheckPoint, GetTimerMetrics, ListDelayedMessages
from tests.broker.delay.test_delay import TOPIC, put
from tests.broker.delay.test_timer import send_at
from tests.broker.talk import START_MS


def listed(talk, **kw):
    reply = talk.ask(ListDelayedMessages(**kw))
    assert reply.code == 0, reply.remark
    return from_json(DelayedMessages, reply.body)


def test_what_waits_is_listed_the_next_first_and_page_by_page(talk):
    send_at(talk, START_MS + 3000, b"timed", key="u1", queue_id=2, more="TAGS\x01A\x02KEYS\x01k\x02")
    talk.send(TOPIC, b"5 s", properties="DELAY\x012\x02UNIQ_KEY\x01u2\x02")
    talk.send(TOPIC, b"1 s", properties="DELAY\x011\x02UNIQ_KEY\x01u3\x02")
    talk.send("Other", b"1 s", properties="DELAY\x011\x02UNIQ_KEY\x01u4\x02")

    found = listed(talk)
    assert [(m.due_ms - START_MS, m.level, m.topic, m.msg_id) for m in found.messages] == [
        (1000, 1, TOPIC, "u3"), (1000, 1, "Other", "u4"), (3000, 0, TOPIC, "u1"), (5000, 2, TOPIC, "u2"),
    ]  # fmt: skip
    assert (found.by_level, found.more, found.now_ms) == ({0: 1, 1: 2, 2: 1}, False, START_MS)
    timed = found.messages[2]
    assert (timed.queue_id, timed.tag, timed.keys, timed.parked_ms, timed.born_ms) == (2, "A", "k", START_MS, START_MS - 5)
    assert parse_recall_handle(timed.handle).key == "u1"
    assert [m.msg_id for m in listed(talk, topic="Other").messages] == ["u4"]
    pages, after = [], {}
    while (page := listed(talk, count=1, **after)).messages:
        [last] = page.messages
        pages.append(last.msg_id)
        after = {"after_ms": last.look_ms, "after_level": last.level, "after_offset": last.queue_offset}
    assert pages == ["u3", "u4", "u1", "u2"]
    talk.wait(2000)
    assert [m.msg_id for m in listed(talk).messages] == ["u1", "u2"]
    for count in (0, -1, 1001):
        assert talk.ask(ListDelayedMessages(count=count)).code == 29


def test_a_list_of_a_topic_goes_on_behind_the_messages_of_others(talk):
    for number in range(2500):
        put(talk, 17, b"DELAY\x0118\x02REAL_TOPIC\x01Other\x02REAL_QID\x010\x02", due=talk.now + number)
    send_at(talk, talk.now + 9000, key="u1")

    page = listed(talk, topic=TOPIC)
    assert (page.messages, page.more) == ([], True)
    page = listed(talk, topic=TOPIC, after_ms=page.last_ms, after_level=page.last_level, after_offset=page.last_offset)

    assert ([message.msg_id for message in page.messages], page.more) == (["u1"], False)


def test_a_list_that_begins_far_behind_reads_few_entries(talk, monkeypatch):
    for number in range(5000):
        put(talk, number % 2, b"DELAY\x011\x02REAL_TOPIC\x01Other\x02REAL_QID\x010\x02", due=talk.now + number)
    reads = []

    def counted(store, topic, queue_id, queue_offset, count):
        entries = entries_at(store, topic, queue_id, queue_offset, count)
        reads.append(len(entries))
        return entries

    monkeypatch.setattr("halfmoon.broker.delay.query.entries_at", counted)

    assert listed(talk, after_ms=2**62, after_level=0, after_offset=0).messages == []
    assert 0 < sum(reads) < 40
    found = listed(talk, count=3, after_ms=talk.now + 4000, after_level=1, after_offset=2000).messages
    assert [(one.due_ms - talk.now, one.level) for one in found] == [(4001, 2), (4002, 1), (4003, 2)]


def test_a_list_begins_with_how_many_are_due_in_a_minute_an_hour_and_a_day(talk):
    for seconds in (1, 59, 60, 61, 3600, 3601, 86_400, 86_401):
        send_at(talk, START_MS + 1000 * seconds, key=f"u{seconds}")
    for level in (1, 5, 6, 18):  # 1 s, 1 m, 2 m, 2 h
        talk.send(TOPIC, properties=f"DELAY\x01{level}\x02")

    assert listed(talk).due_within == {60: 5, 3600: 8, 86_400: 12 - 1}
    assert listed(talk, after_ms=START_MS).due_within == {}
    talk.wait(60_000)
    assert listed(talk).due_within == {60: 2, 3600: 4, 86_400: 7}


def test_the_progress_of_the_levels_can_be_asked(talk):
    talk.send(TOPIC, properties="DELAY\x011\x02")
    talk.wait(1000)

    reply = talk.ask(GetAllDelayOffset())

    assert from_json(DelayOffsetTable, reply.body).offset_table == {level: int(level == 1) for level in range(1, 19)}


def checkpoint(talk) -> TimerCheckpoint:
    return TimerCheckpoint.decode(talk.ask(GetTimerCheckPoint()).body)


def test_a_slave_of_rocketmq_is_told_before_when_every_message_was_delivered(talk):
    start = START_MS - START_MS % 1000
    assert checkpoint(talk) == (start - COPIED_MS, 0, 0, 0, 0, START_MS, 0)
    send_at(talk, START_MS + 9_500, key="u1")
    send_at(talk, START_MS + 2_500, key="u2")
    talk.wait(5_000)
    now = START_MS + 5_000
    assert checkpoint(talk) == (now - now % 1000 - COPIED_MS, 0, 2, 2, 0, now, 0), "some of it may not be copied yet"
    talk.broker.delays.timer.wait(2**62)
    talk.wait(20_000)
    assert checkpoint(talk).read_ms == (START_MS + 9_500) // 1000 * 1000, "one waits that is late"


def test_messages_for_a_point_in_time_are_not_counted_by_topic(talk):
    send_at(talk, START_MS + 9_500, key="u1")
    assert talk.ask(GetTimerMetrics()).body == b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"timingCount":{}}'
