"""Messages for a point in time: when they come, what is refused, cancels, restarts, kills, and what is listed."""

import shutil
from dataclasses import replace
from random import Random

import pytest

from halfmoon.broker.names import TIMER_TOPIC
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.entries import entries_at
from halfmoon.store.journal import Kind, Row
from halfmoon.store.legacy import read_journal
from halfmoon.store.timer.progress import read_progress
from halfmoon.wire.bodies.delays import parse_recall_handle, recall_handle
from halfmoon.wire.headers.admin import UpdateBrokerConfig
from halfmoon.wire.headers.delay import RecallMessage, RecallMessageReply
from halfmoon.wire.headers.send import SendMessageReply
from tests.broker.delay.test_delay import HOURS, TOPIC, bodies, fill_log, put
from tests.broker.half import stored
from tests.broker.talk import OF_THE_BROKER, START_MS, Talk, full_for, send_header
from tests.store.driving import edit_journal

DAY_MS = 86_400_000


def send_at(talk, deliver_ms, body=b"x", *, key="", queue_id=0, more="", topic=TOPIC):
    unique = f"UNIQ_KEY\x01{key}\x02" if key else ""
    reply = talk.send(topic, body, queue_id=queue_id, properties=f"{unique}TIMER_DELIVER_MS\x01{deliver_ms}\x02{more}")
    assert reply.code == 0, reply.remark
    return reply.header(SendMessageReply)


def killed(talk, to):
    """Open a copy of the directory as a process finds it that comes after a kill."""
    shutil.copytree(talk.root, to)
    later = Talk(to)
    later.now = talk.now
    return later


def close(talk):
    talk.broker.stop(talk.instant)
    talk.run_effects()
    talk.broker.close(talk.instant)


def leap(talk, ms):
    """Let much time pass in a few steps."""
    for _ in range(10):
        talk.now += ms // 10
        talk.wait(0)
    talk.now += ms % 10
    talk.wait(0)


def pass_hours(talk, count):
    """Let hours pass, with looks at the log's files in each."""
    for _ in range(count):
        talk.now += 3_580_000
        talk.wait(20_000)


def recall(talk, handle, topic=TOPIC, peer=1):
    return talk.ask(RecallMessage(producer_group="P", topic=topic, recall_handle=handle), peer=peer)


@pytest.mark.mission("001-32")
@pytest.mark.parametrize(
    ("properties", "after_ms"),
    [
        ("TIMER_DELAY_SEC\x013\x02", 3000),
        ("TIMER_DELAY_MS\x011\x02", 1),
        ("TIMER_DELAY_MS\x011234\x02", 1234),
        (f"TIMER_DELIVER_MS\x01{START_MS + 777}\x02", 777),
        (f"__STARTDELIVERTIME\x01{START_MS + 777}\x02", 777),
        (f"TIMER_DELAY_SEC\x012\x02TIMER_DELAY_MS\x0150\x02TIMER_DELIVER_MS\x01{START_MS + 5}\x02", 2000),
        ("DELAY\x011\x02TIMER_DELAY_MS\x0150\x02", 1000),
        ("TIMER_DELAY_SEC\x01300000\x02", 300_000_000),
        (f"TIMER_DELIVER_MS\x01{START_MS + 40 * DAY_MS}\x02", 40 * DAY_MS),
    ],
)
def test_a_message_comes_at_its_point_in_time_and_not_before(talk, properties, after_ms):
    assert talk.send(TOPIC, b"x", properties=properties).code == 0

    leap(talk, after_ms - 1)
    assert bodies(talk) == []
    talk.wait(1)

    [message] = stored(talk, TOPIC)
    assert (message.body, message.store_ms) == (b"x", START_MS + after_ms)


@pytest.mark.parametrize(
    "properties",
    [
        f"TIMER_DELIVER_MS\x01{START_MS}\x02",
        "TIMER_DELAY_SEC\x010\x02",
        "TIMER_DELAY_MS\x01-5\x02",
        f"__STARTDELIVERTIME\x01{START_MS}\x02",
    ],
)
def test_a_time_that_is_over_is_now(talk, properties):
    assert talk.send(TOPIC, b"now", properties=properties).code == 0

    assert bodies(talk) == [b"now"]


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ("TIMER_DELAY_SEC\x01soon\x02", 13),
        ("TIMER_DELAY_SEC\x011.5\x02", 13),
        ("TIMER_DELIVER_MS\x01" + "9" * 30 + "\x02", 13),
        (f"TIMER_DELIVER_MS\x01{START_MS + 40 * DAY_MS + 1}\x02", 13),
        ("TIMER_DELAY_SEC\x01999999999999999999\x02", 13),
        (f"TIMER_DEL_UNIQKEY\x01u1\x02TIMER_DELIVER_MS\x01{START_MS - 1}\x02", 13),
        ("TIMER_DEL_UNIQKEY\x01u1\x02", 13),
        (f"TIMER_DEL_UNIQKEY\x01u1\x02TIMER_DELIVER_MS\x01{START_MS + 1}\x02", 604),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_stored(talk, properties, code):
    end = talk.broker.store.end_offset

    reply = talk.send(TOPIC, properties=properties)

    assert (reply.code, bool(reply.remark)) == (code, True)
    assert talk.broker.store.end_offset == end


def test_timers_can_be_switched_off_and_are_bounded(make_talk):
    assert make_talk(timer_enable=False).send(TOPIC, properties="TIMER_DELAY_SEC\x013\x02").code == 1
    talk = make_talk(timer_messages_max=2)
    for _ in range(2):
        assert talk.send(TOPIC, properties="TIMER_DELAY_SEC\x013\x02").code == 0

    assert talk.send(TOPIC, properties="TIMER_DELAY_SEC\x013\x02").code == 1
    talk.wait(3000)
    assert talk.send(TOPIC, properties="TIMER_DELAY_SEC\x013\x02").code == 0


def test_a_message_is_parked_as_5_x_does(talk):
    send_at(talk, START_MS + 60_000, key="u1", queue_id=3, more="TAGS\x01A\x02")

    [message] = stored(talk, TIMER_TOPIC)
    assert message.properties == {
        "UNIQ_KEY": "u1", "TAGS": "A", **OF_THE_BROKER, "TIMER_DELIVER_MS": str(START_MS + 60_000),
        "REAL_TOPIC": TOPIC, "REAL_QID": "3", "TIMER_OUT_MS": str(START_MS + 60_000),
    }  # fmt: skip
    assert talk.ask(send_header(TIMER_TOPIC, default_topic="TBW102")).code == 16


def test_messages_come_in_the_order_of_their_times_and_of_parking(talk):
    random = Random(7)
    times = [START_MS + random.randrange(1, 5000) // 10 * 10 + 10 for _ in range(700)]
    for number, deliver_ms in enumerate(times):
        send_at(talk, deliver_ms, b"%d" % number)

    talk.wait(6000)

    assert bodies(talk) == [b"%d" % number for number in sorted(range(700), key=lambda k: (times[k], k))]
    assert all(message.store_ms >= times[int(message.body)] for message in stored(talk, TOPIC))


def test_a_restart_and_a_kill_lose_nothing_and_repeat_nothing(talk, tmp_path):
    random = Random(3)
    for number in range(400):
        send_at(talk, START_MS + random.randrange(1, 60_000), b"%d" % number)
    talk.wait(20_000)
    before = bodies(talk)
    talk.restart()
    talk.wait(10_000)

    later = killed(talk, tmp_path / "copy")
    later.wait(60_000)

    assert sorted(map(int, bodies(later))) == list(range(400))
    assert bodies(later)[: len(before)] == before


@pytest.mark.parametrize("by_level", [True, False])
@pytest.mark.parametrize("appended", [0, 1, 5, 30])
def test_a_kill_in_the_middle_of_a_delivery_repeats_nothing_and_loses_nothing(talk, tmp_path, by_level, appended):
    """The process ends when some of a delivery's records are in the log, and before it is written down that they are."""
    properties = "DELAY\x011\x02" if by_level else f"TIMER_DELIVER_MS\x01{START_MS + 1000}\x02"
    for number in range(30):
        talk.send(TOPIC, b"%d" % (number // 2), queue_id=number % 4, properties=properties)
    sends = talk.broker.sends
    append, left = sends.append, [appended]

    def some(topic, queue_id, drafts, now, **kw):
        part = drafts[: left[0]]
        left[0] -= len(part)
        if part:
            append(topic, queue_id, part, now, **kw)
        if not left[0]:
            raise KeyboardInterrupt
        return None

    sends.append = some
    with pytest.raises(KeyboardInterrupt):
        talk.wait(1000)

    later = killed(talk, tmp_path / "copy")
    later.wait(2000)

    for queue_id in range(4):
        assert bodies(later, queue_id=queue_id) == [b"%d" % (number // 2) for number in range(queue_id, 30, 4)]


def copy_progress(talk, directory):
    """Let a copy of a broker's directory have the progress of now; return it."""
    journal = read_journal(talk.disk)
    edit_journal(RealDisk(str(directory)), Row(Kind.DELAYS, b"", journal.value(Kind.DELAYS)))
    return read_progress(journal)


def test_progress_that_speaks_of_a_log_that_is_lost_is_not_believed(talk, tmp_path):
    """A loss of power took the delivered records, but not what was written of them."""
    for number in range(3):
        send_at(talk, START_MS + 1000 + number, b"%d" % number)
    close(talk)
    shutil.copytree(talk.root, tmp_path / "copy")
    talk.open()
    talk.wait(5000)
    assert len(bodies(talk)) == 3
    copy_progress(talk, tmp_path / "copy")

    later = Talk(tmp_path / "copy")
    later.wait(5000)

    assert bodies(later) == [b"0", b"1", b"2"]


def test_progress_that_was_not_believed_does_not_count_either_when_the_log_is_that_long_again(talk, tmp_path):
    """A later start would take it for progress in the log that came instead."""
    send_at(talk, START_MS + 1000, b"0")
    close(talk)
    shutil.copytree(talk.root, tmp_path / "copy")
    talk.open()
    talk.wait(2000)
    copied = copy_progress(talk, tmp_path / "copy")

    later = Talk(tmp_path / "copy")
    progress = read_progress(read_journal(later.disk))
    assert progress is not None
    assert progress.position == later.broker.store.end_offset < copied.position


def test_without_the_progress_in_the_journal_the_saved_tables_count(talk):
    for number in range(4):
        send_at(talk, START_MS + 1000 + number * 1000, b"%d" % number)
        talk.send(TOPIC, b"%d" % number, queue_id=1, properties="DELAY\x011\x02")
    talk.wait(2500)
    close(talk)
    edit_journal(talk.disk, Row(Kind.DELAYS, b"", None))
    talk.open()

    talk.wait(10_000)

    assert bodies(talk) == [b"0", b"1", b"2", b"3"]
    assert bodies(talk, queue_id=1) == [b"0", b"1", b"2", b"3"]


def test_a_clock_that_was_set_back_delivers_nothing_early_and_loses_nothing(talk):
    send_at(talk, START_MS + 10_000, b"1")
    talk.wait(10_000)
    close(talk)
    talk.now = START_MS
    talk.open()
    send_at(talk, START_MS + 2000, b"2")
    talk.wait(1999)
    assert bodies(talk) == [b"1"]
    talk.wait(1)
    assert bodies(talk) == [b"1", b"2"]
    talk.restart()

    talk.wait(10_000)

    assert bodies(talk) == [b"1", b"2"]


@pytest.mark.parametrize("ends", ["runs", "killed", "stopped"])
def test_a_clock_that_was_ahead_for_a_second_delays_nothing(talk, tmp_path, ends):
    """Nor does what was delivered meanwhile come again, or what was parked since count as delivered."""
    send_at(talk, START_MS + 20 * 3_600_000, b"far")
    talk.now += DAY_MS
    talk.wait(1000)
    assert bodies(talk) == [b"far"]
    close(talk)
    talk.now = START_MS + 1000
    talk.open()
    send_at(talk, talk.now + 5000, b"soon")
    if ends == "killed":
        talk = killed(talk, tmp_path / "copy")
    elif ends == "stopped":
        talk.restart()
    talk.wait(4999)
    assert bodies(talk) == [b"far"]
    talk.wait(1)
    assert bodies(talk) == [b"far", b"soon"]
    later = killed(talk, tmp_path / "another")
    leap(later, 2 * DAY_MS)
    assert bodies(later) == [b"far", b"soon"]


def test_what_is_parked_while_a_delivery_waits_survives_a_kill_when_the_clock_was_set_back(talk, tmp_path):
    for number in range(3):
        send_at(talk, START_MS + 10_000, b"begun", key=f"u{number}")
    full_for(talk, TOPIC)
    talk.wait(11_000)
    talk = killed(talk, tmp_path / "set back")
    talk.now = START_MS + 3000
    go_on = full_for(talk, TOPIC)
    send_at(talk, talk.now + 2000, b"between")
    in_flight = killed(talk, tmp_path / "in flight")
    go_on()
    talk.wait(1000)
    assert bodies(talk) == [b"begun"] * 3

    for later in (killed(talk, tmp_path / "copy"), in_flight):
        later.wait(500)
        assert bodies(later) == [b"begun"] * 3, "nothing is early, and nothing comes twice"
        later.wait(10_000)
        assert bodies(later) == [b"begun"] * 3 + [b"between"]


def test_a_record_is_stored_anew_before_the_log_lets_it_go(make_talk):
    talk = make_talk(store={"file_reserved_hours": 3})
    send_at(talk, START_MS + 10 * 3_600_000, b"far", key="u1", queue_id=2)
    for _ in range(18):
        talk.now += 1_800_000
        talk.wait(0)

    copies = stored(talk, TIMER_TOPIC)
    assert [copy.properties.get("TIMER_ROLL_TIMES") for copy in copies] == [None, "1", "2", "3", "4"]
    assert talk.now - copies[-1].store_ms <= 2 * 3_600_000
    talk.restart()
    leap(talk, 3_600_000 - 1)
    assert bodies(talk, queue_id=2) == []
    talk.wait(1)

    [message] = stored(talk, TOPIC, 2)
    assert (message.body, message.born_ms) == (b"far", START_MS - 5)


@pytest.mark.parametrize(
    "properties",
    [b"", b"TIMER_OUT_MS\x01x\x02", b"REAL_TOPIC\x01T\x02REAL_QID\x01-3\x02TIMER_OUT_MS\x015\x02TIMER_LOOK_MS\x015\x02"],
)
def test_a_poisoned_entry_never_blocks_the_timer(talk, properties):
    send_at(talk, START_MS + 1000, b"before")
    put(talk, 0, properties, due=START_MS + 1000, topic=TIMER_TOPIC)
    talk.restart()
    send_at(talk, START_MS + 1001, b"behind")

    talk.wait(1001)

    assert bodies(talk) == [b"before", b"behind"]


@pytest.mark.parametrize("running", [True, False], ids=["while it runs", "at a start"])
def test_nothing_that_waits_is_lost_when_the_log_is_kept_shorter(make_talk, caplog, running):
    """By default a record is stored anew after 48 hours, and the log is kept for 72."""
    talk = make_talk(store={"delete_when": HOURS})
    send_at(talk, START_MS + 47 * 3_600_000, b"soon", key="u1")
    send_at(talk, START_MS + 10 * DAY_MS, b"far", key="u2")
    talk.wait(1000)
    if running:
        assert talk.ask(UpdateBrokerConfig(), b"fileReservedTime=3").code == 0
    else:
        talk.store_settings = replace(talk.store_settings, file_reserved_hours=3)
        talk.restart()
    send_at(talk, START_MS + 47 * 3_600_000, b"later", key="u3")
    fill_log(talk)

    pass_hours(talk, 46)
    assert talk.broker.store.min_offset == 0
    assert "expired log files are kept: the log from 0 on is needed for delayed messages" in caplog.text
    assert [copy.properties.get("TIMER_ROLL_TIMES") for copy in stored(talk, TIMER_TOPIC)][3:5] == ["1", "2"], "every two hours"
    pass_hours(talk, 3)
    assert bodies(talk) == [b"soon", b"later"]
    assert talk.broker.store.min_offset > 0, "once nothing there waits the files go"
    leap(talk, 8 * DAY_MS)

    assert bodies(talk) == [b"soon", b"later", b"far"]


# ---------------------------------------------------------------- cancels


def test_a_message_is_recalled_by_its_handle_and_never_comes(talk):
    handle = send_at(talk, START_MS + 5000, b"gone", key="u1").recall_handle
    send_at(talk, START_MS + 5000, b"stays", key="u2")
    assert parse_recall_handle(handle) == (TOPIC, "broker-a", START_MS + 5001, "u1")

    reply = recall(talk, handle)

    assert (reply.code, reply.header(RecallMessageReply).msg_id) == (0, "u1")
    assert recall(talk, handle).code == 604
    talk.restart()
    assert recall(talk, handle).code == 604
    talk.wait(10_000)
    assert bodies(talk) == [b"stays"]


def test_a_cancel_survives_a_kill_also_when_its_queue_entries_are_lost(talk, tmp_path):
    handle = send_at(talk, START_MS + 5000, b"gone", key="u1").recall_handle
    send_at(talk, START_MS + 6000, b"stays", key="u2")
    assert recall(talk, handle).code == 0

    later = killed(talk, tmp_path / "copy")
    later.wait(10_000)
    assert bodies(later) == [b"stays"]

    copy = tmp_path / "second"
    shutil.copytree(talk.root, copy)
    shutil.rmtree(copy / "consumequeue")
    (copy / "checkpoint").unlink()
    rebuilt = Talk(copy)
    assert [entry.tag_code for entry in entries_at(rebuilt.broker.store, TIMER_TOPIC, 0, 0, 9)] == [
        START_MS + 5000,
        START_MS + 6000,
        -1,
    ]
    rebuilt.wait(10_000)
    assert bodies(rebuilt) == [b"stays"]


def test_a_message_with_the_unique_key_of_another_cancels_it_as_in_5_x(talk):
    for key in ("u1", "u2"):
        send_at(talk, START_MS + 5000, key.encode(), key=key)
    for value in (f"{TOPIC}+u1", "u2"):
        properties = f"TIMER_DEL_UNIQKEY\x01{value}\x02TIMER_DELIVER_MS\x01{START_MS + 5000}\x02"
        assert talk.send(TOPIC, b"", properties=properties).code == 0

    talk.wait(10_000)

    assert bodies(talk) == []


def test_a_message_that_was_stored_anew_is_cancelled(make_talk):
    talk = make_talk(store={"file_reserved_hours": 3})
    handle = send_at(talk, START_MS + 10 * 3_600_000, key="u1").recall_handle
    leap(talk, 5 * 3_600_000)

    assert recall(talk, handle, peer=2).code == 0
    leap(talk, 6 * 3_600_000)

    assert bodies(talk) == []


@pytest.mark.parametrize(
    ("handle", "topic", "code"),
    [
        ("", TOPIC, 604),
        ("%%%", TOPIC, 604),
        ("x" * 100_000, TOPIC, 604),
        (recall_handle(TOPIC, "broker-a", START_MS + 5000, "u9"), TOPIC, 604),
        (recall_handle(TOPIC, "broker-b", START_MS + 5000, "u1"), TOPIC, 604),
        (recall_handle("TBW102", "broker-a", START_MS + 5000, "u1"), TOPIC, 604),
        (recall_handle("TBW102", "broker-a", START_MS + 5000, "u1"), "TBW102", 604),
        (recall_handle(TOPIC, "broker-a", START_MS + 5000, "u1"), "Nowhere", 17),
        (recall_handle(TOPIC, "broker-a", START_MS + 5000, "\x01\x02"), TOPIC, 604),
    ],
)
def test_what_is_no_handle_recalls_nothing(talk, handle, topic, code):
    send_at(talk, START_MS + 5000, b"stays", key="u1")

    assert recall(talk, handle, topic).code == code
    talk.wait(5000)
    assert bodies(talk) == [b"stays"]


def test_it_is_too_late_to_recall_what_was_delivered_and_recalling_can_be_forbidden(talk, make_talk):
    handle = send_at(talk, START_MS + 5000, key="u1").recall_handle
    talk.wait(5000)
    assert recall(talk, handle).code == 604
    assert recall(make_talk(recall_enable=False), handle).code == 16


def test_a_message_whose_delivery_was_begun_cannot_be_recalled(talk):
    handle = send_at(talk, START_MS + 1000, b"begun", key="u1").recall_handle
    talk.now += 1000
    talk.broker.delays.tick(talk.instant)  # its queue is being made

    assert recall(talk, handle).code == 604
    talk.wait(100)
    assert bodies(talk) == [b"begun"]


def test_large_messages_due_at_once_are_delivered_a_few_at_a_time(talk):
    send_at(talk, START_MS + 1)
    talk.wait(100)  # the queue is there
    for number in range(8):
        send_at(talk, START_MS + 1000, b"%d" % number * 200_000)
    talk.now = START_MS + 1000

    talk.broker.delays.tick(talk.instant)
    assert talk.broker.delays.deliveries.delivered == 1 + 5
    talk.wait(100)

    assert [body[:1] for body in bodies(talk)[1:]] == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize("late_ms", [3, 9 * 3_600_000])
def test_a_kill_while_a_record_is_stored_anew_repeats_nothing(make_talk, tmp_path, late_ms):
    """It is stored anew at its time, or so late that it is delivered instead; the process ends before that is written down."""
    talk = make_talk(store={"file_reserved_hours": 3})
    talk.send(TOPIC, b"first", queue_id=2)
    send_at(talk, START_MS + 10 * 3_600_000, b"far", key="u1", queue_id=2)
    sends, append = talk.broker.sends, talk.broker.sends.append

    def once(*args, **kw):
        append(*args, **kw)
        raise KeyboardInterrupt

    sends.append = once
    talk.now += 2 * 3_600_000 + late_ms
    with pytest.raises(KeyboardInterrupt):
        talk.broker.delays.tick(talk.instant)

    later = killed(talk, tmp_path / "copy")
    leap(later, 20 * 3_600_000)
    later.wait(100)

    assert bodies(later, queue_id=2) == [b"first", b"far"]
