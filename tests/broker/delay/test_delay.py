"""Delay levels: what is parked and how, when it is delivered, and what comes of what cannot be delivered."""

import os
from itertools import pairwise

import pytest

from halfmoon.broker.names import SCHEDULE_TOPIC
from halfmoon.errors import MessageRefused, SettingError
from halfmoon.ports import DiskUsage
from halfmoon.store.entries import entries_at
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.ids import pack_host
from tests.broker.half import stored
from tests.broker.talk import OF_THE_BROKER, START_MS, pull_header

TOPIC = "BenchmarkTest"
HOST = pack_host("10.0.0.9:77")


def send(talk, level, body=b"x", *, queue_id=0, more="", **kw):
    reply = talk.send(TOPIC, body, queue_id=queue_id, properties=f"DELAY\x01{level}\x02{more}", **kw)
    assert reply.code == 0, reply.remark
    return reply.header(SendMessageReply)


def bodies(talk, topic=TOPIC, queue_id=0):
    return [message.body for message in stored(talk, topic, queue_id)]


def put(talk, queue_id, properties, *, due=START_MS, body=b"odd", topic=SCHEDULE_TOPIC):
    """Store a record in a parking queue as another broker, or nobody, would."""
    return talk.broker.store.append(topic, queue_id, [(body, properties, 0, 0, 1, HOST, 0, 0, due)], talk.now)


@pytest.mark.mission("001-32")
@pytest.mark.parametrize(("level", "delay_ms"), [(1, 1000), (2, 5000), (5, 60_000), (18, 7_200_000)])
def test_a_delayed_message_is_visible_at_its_time_and_not_before(talk, level, delay_ms):
    send(talk, level)

    talk.now += delay_ms - 1
    talk.wait(0)
    assert bodies(talk) == []
    talk.wait(1)

    [message] = stored(talk, TOPIC)
    assert (message.body, message.store_ms, message.born_ms) == (b"x", START_MS + delay_ms, START_MS - 5)


@pytest.mark.mission("001-33")
def test_the_levels_are_those_of_the_original(talk):
    seconds = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
    for level in range(1, 19):
        send(talk, level, b"%d" % level)

    for level, delay_s in enumerate(seconds, 1):
        talk.now = START_MS + delay_s * 1000 - 1
        talk.wait(0)
        assert len(bodies(talk)) == level - 1
        talk.wait(1)
        assert bodies(talk)[-1] == b"%d" % level


@pytest.mark.mission("001-34")
def test_a_broker_has_a_table_of_its_own(make_talk):
    talk = make_talk(delay_levels="2s 1m 1d")
    for level in (1, 2, 3, 4):
        send(talk, level, b"%d" % level)

    talk.wait(2000)
    assert bodies(talk) == [b"1"]
    talk.wait(58_000)
    assert bodies(talk) == [b"1", b"2"]
    talk.now += 86_400_000 - 60_001
    talk.wait(0)
    assert len(bodies(talk)) == 2
    talk.wait(1)
    assert bodies(talk) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("table", ["0s", "-1s", "1x", "s", "1.5s", "41d", "99999999999s", "1s;2s", "1s " * 65])
def test_a_table_that_cannot_be_is_refused_at_the_start(make_talk, table):
    with pytest.raises(SettingError, match="delay_levels"):
        make_talk(delay_levels=table)


@pytest.mark.mission("001-36")
@pytest.mark.parametrize("level", ["0", "-1", "-99"])
def test_level_0_is_not_delayed(talk, level):
    talk.send(TOPIC, b"now", properties=f"DELAY\x01{level}\x02")

    assert bodies(talk) == [b"now"]
    assert talk.broker.store.queue_ids(SCHEDULE_TOPIC) == []


@pytest.mark.mission("001-37")
def test_level_1_is_one_second(talk):
    send(talk, 1)

    [entry] = entries_at(talk.broker.store, SCHEDULE_TOPIC, 0, 0, 10)
    assert entry.tag_code == START_MS + 1000


@pytest.mark.mission("001-38")
@pytest.mark.parametrize("level", [19, 20, 2**31 - 1, 9_999_999_999])
def test_a_level_above_the_last_is_the_last(talk, level):
    send(talk, level)

    [message] = stored(talk, SCHEDULE_TOPIC, 17)
    assert message.properties["DELAY"] == "18"
    talk.now += 7_200_000
    talk.wait(0)
    assert bodies(talk) == [b"x"]


@pytest.mark.mission("001-39")
@pytest.mark.mission("001-43")
def test_a_message_is_parked_with_its_topic_and_queue_in_its_properties(talk):
    answer = send(talk, 3, b"x", queue_id=5, more="TAGS\x01A\x02KEYS\x01k\x02REAL_TOPIC\x01Elsewhere\x02REAL_QID\x0199\x02")

    [message] = stored(talk, SCHEDULE_TOPIC, 2)
    assert message.properties == {
        "TAGS": "A", "KEYS": "k", **OF_THE_BROKER, "REAL_TOPIC": TOPIC, "REAL_QID": "5", "DELAY": "3",
    }  # fmt: skip
    assert (answer.queue_id, answer.queue_offset, answer.msg_id) == (5, 0, message.offset_msg_id)
    assert bodies(talk, queue_id=5) == []


@pytest.mark.mission("001-40")
def test_the_parking_queue_is_the_level_less_one_and_the_same_delay_keeps_order(talk):
    for number in range(300):
        send(talk, 2, b"%d" % number, queue_id=number % 3)
        talk.now += number % 5

    assert len(stored(talk, SCHEDULE_TOPIC, 1)) == 300
    talk.wait(10_000)
    for queue_id in range(3):
        assert bodies(talk, queue_id=queue_id) == [b"%d" % number for number in range(queue_id, 300, 3)]


@pytest.mark.mission("001-41")
def test_a_delivered_message_is_a_message_of_its_topic_with_its_tag(talk):
    send(talk, 1, queue_id=4, more="TAGS\x01A\x02")
    talk.wait(1000)

    [message] = stored(talk, TOPIC, 4)
    assert (message.topic, message.queue_id, message.queue_offset) == (TOPIC, 4, 0)
    assert message.properties["TAGS"] == "A"
    assert len(stored(talk, SCHEDULE_TOPIC, 0)) == 1
    assert talk.pull(TOPIC, queue_id=4, expression="A").code == 0
    assert talk.pull(TOPIC, queue_id=4, expression="B").code != 0


def test_a_pull_that_waits_is_answered_when_a_delayed_message_comes(talk):
    talk.consume(TOPIC, peer=2)
    send(talk, 1)
    opaque = talk.post(pull_header(TOPIC, wait_ms=10_000), peer=2)
    talk.turn()
    talk.wait(999)
    assert talk.answer(opaque, peer=2) is None
    talk.wait(1)

    assert talk.answer(opaque, peer=2).code == 0


@pytest.mark.mission("001-42")
def test_each_level_has_a_delivery_of_its_own_at_its_own_time(make_talk):
    talk = make_talk(delay_levels=" ".join(f"{second}s" for second in range(1, 19)))
    for level in range(18, 0, -1):  # the longest first
        send(talk, level, b"%d" % level)
    assert len(talk.broker.delays.level_queues) == 18
    begin = talk.now
    came = {}
    for _ in range(190):
        talk.wait(100)
        for body in bodies(talk):
            came.setdefault(int(body), talk.now - begin)
    assert came == {level: 1000 * level for level in range(1, 19)}


@pytest.mark.mission("001-42")
def test_a_level_whose_queue_is_not_made_yet_leaves_the_others_alone(talk):
    assert talk.send(TOPIC, b"first").code == 0
    for second in range(3):
        send(talk, 1, b"stuck %d" % second, queue_id=3)
    send(talk, 2, b"free")
    talk.held_queues = []

    talk.wait(5100)

    assert (bodies(talk), bodies(talk, queue_id=3)) == ([b"first", b"free"], [])
    talk.release()
    talk.wait(1000)
    assert bodies(talk, queue_id=3) == [b"stuck 0", b"stuck 1", b"stuck 2"]


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"DELAY\x011\x02",
        b"REAL_TOPIC\x01BenchmarkTest\x02DELAY\x011\x02",
        b"REAL_TOPIC\x01BenchmarkTest\x02REAL_QID\x01-1\x02",
        b"REAL_TOPIC\x01BenchmarkTest\x02REAL_QID\x01many\x02",
        b"REAL_TOPIC\x01BenchmarkTest\x02REAL_QID\x01999999999\x02",
        b"REAL_TOPIC\x01../../etc\x02REAL_QID\x010\x02",
        b"REAL_TOPIC\x01\xff\xfe\x02REAL_QID\x010\x02",
        b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02",
        b"REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010\x02",
    ],
)
def test_a_poisoned_entry_never_blocks_the_others(talk, properties):
    send(talk, 1, b"before")
    put(talk, 0, properties)
    send(talk, 1, b"behind")

    talk.wait(1000)

    assert bodies(talk) == [b"before", b"behind"]
    assert talk.broker.delays.deliveries.skipped == 1


def test_a_parked_record_that_is_damaged_is_passed_over(talk):
    for body in (b"before", b"damaged", b"behind"):
        send(talk, 1, body)
    place = stored(talk, SCHEDULE_TOPIC)[1].physical_offset
    talk.broker.store.log.segments.write(place + 88, b"!")

    talk.wait(1000)

    assert bodies(talk) == [b"before", b"behind"]


def test_a_topic_that_is_gone_is_made_again_for_what_is_due(talk):
    talk.send("Gone")
    talk.send("Gone", b"later", properties="DELAY\x011\x02", queue_id=2)
    talk.broker.topics.delete("Gone", talk.now)
    talk.broker.store.delete_topic("Gone", talk.now)

    talk.wait(2000)

    assert bodies(talk, "Gone", 2) == [b"later"]
    assert talk.broker.topics.get("Gone") is not None


def test_a_topic_that_is_gone_and_cannot_be_made_again_holds_up_nobody(make_talk):
    talk = make_talk(topics_max=100)
    talk.send("Gone")
    talk.send("Gone", b"nowhere", properties="DELAY\x011\x02")
    send(talk, 1, b"behind")
    talk.broker.topics.delete("Gone", talk.now)
    talk.broker.store.delete_topic("Gone", talk.now)
    codes = [talk.send(f"T{number}").code for number in range(100)]
    assert (codes[0], codes[-1]) == (0, 2)
    talk.wait(1000)

    send(talk, 1, b"later")
    talk.wait(1000)

    deliveries = talk.broker.delays.deliveries
    assert bodies(talk) == [b"behind", b"later"]
    assert (deliveries.delivered, deliveries.skipped) == (2, 1)


def test_many_due_at_once_are_delivered_a_part_at_a_time(talk):
    for number in range(1000):
        send(talk, 1, b"%d" % number)
    counts, talk.now = [0], START_MS + 1000

    while counts[-1] < 1000:
        talk.broker.tick(talk.instant)
        talk.run_effects()
        counts.append(talk.broker.store.queue_max(TOPIC, 0))

    assert max(b - a for a, b in pairwise(counts)) <= 128
    assert bodies(talk) == [b"%d" % number for number in range(1000)]


def test_large_messages_of_a_level_are_delivered_a_few_at_a_time(talk):
    talk.send(TOPIC, b"first")
    for number in range(8):
        send(talk, 1, b"%d" % number * 200_000)
    talk.now = START_MS + 1000

    talk.broker.delays.tick(talk.instant)
    assert talk.broker.delays.deliveries.delivered == 5
    talk.wait(100)

    assert [body[:1] for body in bodies(talk)[1:]] == [b"%d" % number for number in range(8)]


HOURS = ";".join(f"{hour:02}" for hour in range(24))


def fill_log(talk):
    """Store messages that fill log files, all of them written at the start."""
    for _ in range(4):
        talk.send("Other", b"x" * 200_000)
    for path in (talk.root / "commitlog").iterdir():
        os.utime(path, (START_MS / 1000, START_MS / 1000))


def test_a_level_longer_than_the_log_keeps_its_files_is_warned_of_and_keeps_them(make_talk, caplog):
    talk = make_talk(delay_levels="1s 10d", store={"file_reserved_hours": 72, "delete_when": HOURS})
    assert "longer than file_reserved_hours (72)" in caplog.text
    send(talk, 2)
    fill_log(talk)

    for _ in range(9):
        talk.now += 86_400_000
        talk.wait(10_000)
    assert talk.broker.store.min_offset == 0
    assert caplog.text.count("expired log files are kept: the log from 0 on is needed for delayed messages") == 1
    for _ in range(3):
        talk.now += 86_400_000
        talk.wait(10_000)

    assert bodies(talk) == [b"x"]
    assert talk.broker.store.min_offset > 0, "once it is delivered they go"


def test_a_disk_that_is_nearly_full_takes_what_waits_and_the_log_says_so(make_talk, caplog):
    talk = make_talk(delay_levels="1s 10d", store={"disk_used_ratio_max": 1, "disk_clean_forcibly_ratio": 1})
    talk.disk.usage = lambda: DiskUsage(100, 50)
    send(talk, 2)
    fill_log(talk)

    talk.wait(60_000)
    talk.now += 11 * 86_400_000
    talk.wait(10_000)

    assert "the disk is nearly full: delayed messages are lost with the log below" in caplog.text
    assert bodies(talk) == []
    assert "delay level 2: messages from 0 to 1 were lost" in caplog.text


def test_the_levels_of_the_original_are_not_warned_of(make_talk, caplog):
    make_talk()
    assert "file_reserved_hours" not in caplog.text


def test_what_is_due_waits_for_a_store_that_takes_nothing_and_is_delivered_once(talk):
    for body in (b"1", b"2"):
        send(talk, 1, body)
    talk.broker.store.maintenance.disk_full = "the disk is full"
    talk.wait(3000)
    assert bodies(talk) == []

    talk.broker.store.maintenance.disk_full = None
    talk.wait(100)

    assert bodies(talk) == [b"1", b"2"]


def test_messages_are_delivered_after_a_restart_each_once_and_not_before(talk):
    send(talk, 1, b"before")
    send(talk, 3, b"behind")
    talk.wait(1000)
    talk.restart()
    talk.wait(8999)
    assert bodies(talk) == [b"before"]
    talk.wait(1)

    assert bodies(talk) == [b"before", b"behind"]
    talk.restart()
    talk.wait(60_000)
    assert bodies(talk) == [b"before", b"behind"]


def test_what_another_broker_says_of_its_progress_is_believed(talk):
    for number in range(3):
        send(talk, 1, b"%d" % number)
    talk.wait(100)
    talk.broker.stop(talk.instant)
    talk.run_effects()
    talk.broker.close(talk.instant)
    (talk.root / "config" / "delayOffset.json").write_text('{"offsetTable":{1:2,2:77}}')
    talk.open()

    talk.wait(5000)

    assert bodies(talk) == [b"2"]


def reopen(talk, levels):
    """Stop the broker and start it with another table of levels."""
    talk.broker.stop(talk.instant)
    talk.run_effects()
    talk.broker.close(talk.instant)
    talk.settings = type(talk.settings)(delay_levels=levels)
    talk.open()


@pytest.mark.parametrize(("level", "levels", "delay_ms"), [(18, "1s 2s", 7_200_000), (2, "1s 1s", 5_000)], ids=["gone", "shorter"])
def test_a_level_that_is_gone_or_shorter_delivers_what_it_holds_at_its_time(make_talk, level, levels, delay_ms):
    talk = make_talk()
    send(talk, level)
    reopen(talk, levels)

    talk.now += delay_ms - 1
    talk.wait(0)
    assert bodies(talk) == []
    talk.wait(1)

    assert bodies(talk) == [b"x"]


def test_sync_flush_delivers_as_well(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    for number in range(200):
        send(talk, 1, b"%d" % number)

    talk.wait(1100)

    assert bodies(talk) == [b"%d" % number for number in range(200)]


def test_park_keeps_a_draft_whatever_way_it_was_parked_before(talk):
    draft = (b"again", b"DELAY\x013\x02REAL_TOPIC\x01Old\x02REAL_QID\x017\x02k\x01v", 3, 0, 5, HOST, 2, 99, 0)

    talk.broker.delays.park("BenchmarkTest", 1, 1, draft, talk.now)
    talk.wait(1000)

    [message] = stored(talk, TOPIC, 1)
    assert message.properties == {"k": "v", "REAL_TOPIC": TOPIC, "REAL_QID": "1", "DELAY": "1"}
    assert (message.body, message.flag, message.born_ms, message.reconsume_times) == (b"again", 3, 5, 2)
    assert message.prepared_transaction_offset == 0


def test_park_refuses_what_has_no_room_or_no_level(talk, make_talk):
    draft = (b"x", b"k\x01" + b"v" * 32_740 + b"\x02", 0, 0, 5, HOST, 0, 0, 0)
    with pytest.raises(MessageRefused):
        talk.broker.delays.park(TOPIC, 0, 1, draft, talk.now)
    for level in (0, -1):
        with pytest.raises(MessageRefused):
            talk.broker.delays.park(TOPIC, 0, level, (b"x", b"", 0, 0, 5, HOST, 0, 0, 0), talk.now)
    with pytest.raises(MessageRefused):
        make_talk(delay_levels="").broker.delays.park(TOPIC, 0, 1, (b"x", b"", 0, 0, 5, HOST, 0, 0, 0), START_MS)
