"""Expiry: one copy, whatever comes between it and its op record; and log files that wait for what is pending in them."""

from __future__ import annotations

import pytest

from halfmoon.broker.names import EXPIRED_TOPIC, HALF_TOPIC, OP_TOPIC
from halfmoon.broker.transactions import expiry
from halfmoon.errors import ServiceNotAvailable
from halfmoon.ports import DiskUsage
from halfmoon.wire.ids import parse_offset_msg_id
from tests.broker.half import CHECKS, COMMIT, GROUP, TOPIC, checks, end, prepare, produce, stored
from tests.broker.talk import START_MS, full_for

HOUR = 3_600_000
ONCE = {**CHECKS, "transaction_check_max": 1}


@pytest.mark.parametrize("before", [0, 1])
def test_after_an_end_between_a_copy_and_its_op_record_no_second_copy_is_made(make_talk, before):
    talk = make_talk(**ONCE)
    for _ in range(before):
        talk.send(TOPIC)  # so that no half message lies at the begin of the log
    produce(talk, GROUP)
    sent = [prepare(talk, f"u{k}") for k in range(3)]
    full_for(talk, OP_TOPIC)
    talk.wait(12_000)
    copies = stored(talk, EXPIRED_TOPIC)
    places = [parse_offset_msg_id(each.msg_id).physical_offset for each in sent]
    assert [copy.prepared_transaction_offset for copy in copies] == places
    for _ in range(2):
        talk.restart()
        talk.wait(6000)
    prepare(talk, "u3")
    produce(talk, GROUP)
    talk.wait(12_000)

    assert [copy.properties["UNIQ_KEY"] for copy in stored(talk, EXPIRED_TOPIC)] == ["u0", "u1", "u2", "u3"]
    assert sorted(int(op.body) for op in stored(talk, OP_TOPIC)) == [0, 1, 2, 3]


def test_a_copy_that_names_no_place_or_another_message_stands_for_no_half_message(make_talk):
    talk = make_talk(**ONCE)
    produce(talk, GROUP)
    sent = prepare(talk, "mine")
    assert parse_offset_msg_id(sent.msg_id).physical_offset == 0
    half = talk.broker.transactions.half_messages.cache.get(0).drafts[0]
    for properties in (half[1].replace(b"mine", b"his!"), half[1]):
        body = b"other" if properties == half[1] else half[0]
        talk.broker.sends.append(EXPIRED_TOPIC, 0, [(body, properties, *half[2:])], talk.now)  # as Apache's brokers copy
    talk.wait(12_000)

    assert [(copy.body, copy.properties["UNIQ_KEY"]) for copy in stored(talk, EXPIRED_TOPIC)] == [
        (b"order", "his!"), (b"other", "mine"), (b"order", "mine"),
    ]  # fmt: skip


def test_bodies_of_copies_whose_half_messages_are_settled_are_not_read_after_a_start(make_talk, monkeypatch):
    talk = make_talk(**ONCE)
    prepare(talk, "open", more="CHECK_IMMUNITY_TIME_IN_SECONDS\x013600\x02")  # stays pending: every copy is looked at
    produce(talk, GROUP)
    for k in range(20):
        prepare(talk, f"u{k}")
    talk.wait(12_000)
    assert len(stored(talk, EXPIRED_TOPIC)) == 20
    talk.restart()
    looked, read, places_of, message_of = [], [], expiry.places_of, expiry.message_of
    monkeypatch.setattr(expiry, "places_of", lambda record: looked.append(record) or places_of(record))
    monkeypatch.setattr(expiry, "message_of", lambda record: read.append(record) or message_of(record))
    produce(talk, GROUP)
    prepare(talk, "last")
    talk.wait(12_000)

    assert "last" in [copy.properties["UNIQ_KEY"] for copy in stored(talk, EXPIRED_TOPIC)]
    assert (len(looked), read) == (2 * 20, [])  # each copy, and the half message that it names


def test_copies_that_wait_for_their_op_records_are_bounded(make_talk):
    talk = make_talk(**ONCE)
    talk.broker.transactions.expiry.copied_max = 2
    produce(talk, GROUP)
    for k in range(5):
        prepare(talk, f"u{k}")
    go_on = full_for(talk, OP_TOPIC)
    talk.wait(60_000)
    assert len(stored(talk, EXPIRED_TOPIC)) == 2
    go_on()
    talk.wait(6000)

    assert sorted(copy.properties["UNIQ_KEY"] for copy in stored(talk, EXPIRED_TOPIC)) == ["u0", "u1", "u2", "u3", "u4"]
    assert talk.broker.transactions.index.pending_count == 0


# ---------------------------------------------------------------- log files


def fill(talk, files=3):
    """Send messages until so many log files are there."""
    while talk.broker.store.end_offset < files * 256 * 1024:
        talk.send(TOPIC, bytes(30_000))
        talk.wait(100)


def use(talk, percent):
    talk.disk.usage = lambda: DiskUsage(100, 100 - percent)


@pytest.mark.parametrize("percent", [88, 95])
def test_where_the_disk_needs_room_what_is_pending_expires_before_its_file_goes(make_talk, percent):
    talk = make_talk(**CHECKS)
    sent = [prepare(talk, f"u{k}") for k in range(40)]
    fill(talk)
    late = prepare(talk, "late")
    talk.wait(60_000)
    assert talk.broker.store.min_offset == 0
    use(talk, percent)
    removed, remove = [], talk.disk.remove

    def watched(path):
        if path.startswith("commitlog/"):
            removed.append((path, len(stored(talk, EXPIRED_TOPIC)), talk.broker.store.durable_offset))
        remove(path)

    talk.disk.remove = watched
    end_before = talk.broker.store.end_offset
    talk.wait(40_000)

    copies = stored(talk, EXPIRED_TOPIC)
    assert [copy.properties["UNIQ_KEY"] for copy in copies] == [f"u{k}" for k in range(40)]
    assert {copy.properties["TRANSACTION_EXPIRED_REASON"] for copy in copies} == {"its log file goes: the disk needs the room"}
    assert [count for _, count, _ in removed] == [40] * len(removed)
    assert len(removed) == 3
    assert all(durable > end_before for _, _, durable in removed)
    assert talk.broker.store.min_offset == 3 * 256 * 1024
    assert talk.broker.transactions.index.pending_count == 1
    use(talk, 10)
    talk.wait(20_000)
    assert end(talk, late, COMMIT).code == 0
    assert end(talk, sent[0], COMMIT).code == 1


def test_a_turn_expires_a_bounded_number_for_the_disk(make_talk):
    talk = make_talk(**CHECKS)
    for k in range(40):
        prepare(talk, f"u{k}")
    fill(talk)
    talk.wait(60_000)
    use(talk, 88)
    counts, clear = [], talk.broker.transactions.checks.clear

    def counted(below, now):
        before = talk.broker.transactions.expiry.expired
        done = clear(below, now)
        counts.append(talk.broker.transactions.expiry.expired - before)
        return done

    talk.broker.transactions.checks.clear = counted
    talk.wait(30_000)
    assert counts == [16, 16, 8]


def test_while_no_copy_can_be_stored_files_stay_and_the_broker_does_not_spin(make_talk):
    talk = make_talk(**CHECKS)
    prepare(talk)
    fill(talk)
    talk.wait(60_000)
    use(talk, 88)
    tries, append = [], talk.broker.sends.append

    def full(topic, *others, **kw):
        if topic == EXPIRED_TOPIC:
            tries.append(topic)
            raise ServiceNotAvailable("full")
        return append(topic, *others, **kw)

    talk.broker.sends.append = full
    talk.wait(60_000)
    assert 30 < len(tries) < 70
    assert talk.broker.store.min_offset == 0
    talk.broker.sends.append = append
    talk.wait(40_000)
    assert len(stored(talk, EXPIRED_TOPIC)) == 1
    assert talk.broker.store.min_offset > 0


def test_files_that_are_only_old_wait_for_what_is_pending_in_them(make_talk, caplog):
    talk = make_talk(store={"delete_when": "22;23"}, **CHECKS)
    talk.disk.modified_ms = lambda path: START_MS
    sent = prepare(talk)
    fill(talk)
    talk.now += 96 * HOUR  # a step of the clock: everything is older than messages are kept
    talk.wait(300_000)
    assert talk.broker.store.min_offset == 0
    assert stored(talk, EXPIRED_TOPIC) == []
    assert len([text for text in caplog.messages if "expired log files are kept" in text]) == 1
    produce(talk, GROUP, peer=2)
    talk.wait(6000)
    assert [header.msg_id for header, _ in checks(talk, 2)] == ["u1"]
    assert end(talk, sent, COMMIT, check=True, peer=2).code == 0
    talk.wait(40_000)

    assert talk.broker.store.min_offset == 3 * 256 * 1024
    assert [message.properties["UNIQ_KEY"] for message in stored(talk, TOPIC, 3)] == ["u1"]


def test_what_is_pending_in_no_file_that_goes_holds_nothing(make_talk):
    talk = make_talk(**CHECKS)
    fill(talk)
    prepare(talk)
    talk.wait(60_000)
    use(talk, 88)
    talk.wait(40_000)
    assert talk.broker.store.min_offset == 3 * 256 * 1024
    assert stored(talk, EXPIRED_TOPIC) == []
    assert len(stored(talk, HALF_TOPIC)) == 1
