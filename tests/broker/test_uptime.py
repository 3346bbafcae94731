"""Ages in time that the broker lived: gaps are noticed, logged, kept over restarts, bounded, and taken off."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfmoon.broker.names import EXPIRED_TOPIC
from halfmoon.broker.tables import Tables
from halfmoon.broker.uptime import GAP_MS, GAPS_MAX, PATH, BrokerUptime
from halfmoon.runtime.files.disk import RealDisk
from tests.broker.half import CHECKS, COMMIT, GROUP, TOPIC, checks, end, prepare, produce, stored

NOW, HOUR = 1_700_000_000_000, 3_600_000


@pytest.fixture
def disk(tmp_path):
    return RealDisk(str(tmp_path))


def uptime(disk, now=NOW, last_ms=0, warned=None):
    """A lifetime, and what saves its table."""
    tables = Tables(disk)
    found = BrokerUptime(tables, last_ms, now, lambda *said: None if warned is None else warned.append(said))
    return found, lambda: [work.done(work.run(), 0) for work in tables.save_changed(everything_changed=True)]


def test_without_a_gap_an_age_is_the_clocks(disk):
    found, _ = uptime(disk)
    for minutes in range(10, 200, 10):
        found.seen(NOW + minutes * 60_000)
    assert found.age_ms(NOW - 5 * HOUR, NOW + 190 * 60_000) == 5 * HOUR + 190 * 60_000
    assert found.age_ms(NOW + 1, NOW) == -1


def test_a_step_of_the_clock_is_no_age_of_what_was_stored_before_it(disk):
    warned = []
    found, _ = uptime(disk, warned=warned)
    found.seen(NOW + 1000)
    found.seen(NOW + 1000 + 73 * HOUR)
    later = NOW + 74 * HOUR

    assert [round(hours) for _, hours in warned] == [73]
    assert found.age_ms(NOW - HOUR, later) == 2 * HOUR
    assert found.age_ms(NOW + 1000 + 73 * HOUR, later) == HOUR - 1000
    assert found.age_ms(NOW + 40 * HOUR, later) == HOUR - 1000, "a time within the gap counts from its end"
    found.seen(later + GAP_MS)
    assert len(warned) == 2, "from the last sign of life on"
    found.seen(later + 2 * GAP_MS)
    assert len(warned) == 2


@pytest.mark.parametrize("data", [b"{", b'{"seenMs": "x"}', b"\0" * 30], ids=["cut", "wrong", "zeros"])
def test_a_damaged_table_of_gaps_keeps_no_broker_from_starting(disk, data):
    _, save = uptime(disk)
    save()
    (Path(disk.root) / PATH).write_bytes(data)
    warned = []

    found, save = uptime(disk, NOW + HOUR, last_ms=NOW + HOUR - 1000, warned=warned)

    assert [PATH in str(said) for said in warned] == [True]
    assert found.age_ms(NOW, NOW + HOUR) == HOUR
    save()
    warned.clear()
    uptime(disk, NOW + HOUR, warned=warned)
    assert warned == []


def test_gaps_and_the_time_between_two_lives_are_kept_over_restarts(disk):
    found, save = uptime(disk)
    found.seen(NOW + 50 * HOUR)
    save()
    found, save = uptime(disk, NOW + 150 * HOUR)
    save()
    found, save = uptime(disk, NOW + 150 * HOUR + 1000)

    assert found.age_ms(NOW - HOUR, NOW + 151 * HOUR) == 2 * HOUR
    found.forget()
    assert found.age_ms(NOW - HOUR, NOW + 151 * HOUR) == 152 * HOUR
    save()
    assert uptime(disk, NOW + 151 * HOUR)[0].age_ms(NOW - HOUR, NOW + 151 * HOUR) == 152 * HOUR - (HOUR - 1000)


def test_after_a_clock_far_ahead_was_set_right_gaps_are_noticed_again(disk):
    _, save = uptime(disk, NOW + 9000 * HOUR)
    save()
    found, save = uptime(disk, NOW)
    found.seen(NOW + 1000)
    save()
    found, _ = uptime(disk, NOW + 80 * HOUR)

    assert found.age_ms(NOW, NOW + 81 * HOUR) < 2 * HOUR


def test_a_gap_that_ends_where_no_clock_is_yet_keeps_nothing_young(disk):
    found, save = uptime(disk)
    found.seen(NOW + 9000 * HOUR)
    save()
    found, _ = uptime(disk, NOW + HOUR)
    for minutes in range(60, 20 * 60, 9):
        found.seen(NOW + minutes * 60_000)

    assert found.age_ms(NOW + HOUR, NOW + 20 * HOUR) == 19 * HOUR
    assert found.age_ms(NOW, NOW + 20 * HOUR) == 19 * HOUR


def test_a_store_without_the_table_counts_from_its_last_half_message(disk):
    found, _ = uptime(disk, NOW, NOW - 100 * HOUR)
    assert found.age_ms(NOW - 101 * HOUR, NOW) == HOUR


def test_that_the_broker_lives_is_saved_once_a_minute(disk):
    found, save = uptime(disk)
    times = set()
    for second in range(0, 600, 10):
        found.seen(NOW + second * 1000)
        save()
        times.add(disk.read(PATH))
    assert len(times) == 10
    assert b"%d" % (NOW + 540_000) in disk.read(PATH)


def test_a_gap_that_was_not_saved_before_a_kill_is_found_again(disk):
    found, save = uptime(disk, NOW)
    save()
    found.seen(NOW + 100 * HOUR)
    after = NOW + 100 * HOUR + 1000
    found, _ = uptime(disk, after, NOW + 100 * HOUR + 500)  # a half message was stored behind the step
    assert found.age_ms(NOW - HOUR, after + HOUR) == 2 * HOUR


def test_a_clock_that_was_set_back_over_a_restart_is_no_gap(disk):
    found, save = uptime(disk)
    found.seen(NOW + 60_000)
    save()
    found, _ = uptime(disk, NOW - 30 * HOUR)
    assert found.age_ms(NOW - 31 * HOUR, NOW - 29 * HOUR) == 2 * HOUR


def test_gaps_are_bounded_and_nothing_is_taken_for_older_than_it_is(disk):
    found, _ = uptime(disk)
    lived = {}
    now, count = NOW, GAPS_MAX + 30
    for number in range(count):
        lived[now] = number
        found.seen(now + HOUR // 10)
        now += 2 * HOUR
        found.seen(now)
    assert len(found._gaps) == GAPS_MAX
    for stored_ms, number in lived.items():
        exact = (count - number) * HOUR // 10
        assert found.age_ms(stored_ms, now) <= exact
        if number in (0, count - 1, count - GAPS_MAX + 1):
            assert found.age_ms(stored_ms, now) == exact


# ---------------------------------------------------------------- in a broker


@pytest.mark.parametrize("by", ["step", "outage"])
def test_after_a_step_of_the_clock_or_an_outage_producers_are_asked_and_nothing_expires(make_talk, by):
    talk = make_talk(**CHECKS)
    sent = [prepare(talk, f"u{k}") for k in range(3)]
    talk.wait(60_000)
    if by == "step":
        talk.now += 100 * HOUR
    else:
        talk.broker.stop(talk.instant)
        talk.run_effects()
        talk.broker.close(talk.instant)
        talk.now += 100 * HOUR
        talk.open()
    talk.wait(60_000)
    assert stored(talk, EXPIRED_TOPIC) == []
    produce(talk, GROUP, peer=2)
    talk.wait(5000)

    assert [header.msg_id for header, _ in checks(talk, 2)] == ["u0", "u1", "u2"]
    assert end(talk, sent[1], COMMIT, check=True, peer=2).code == 0
    assert [message.properties["UNIQ_KEY"] for message in stored(talk, TOPIC, 3)] == ["u1"]


def test_a_step_is_no_age_of_what_was_stored_before_it_and_behind_a_message_of_a_later_date(make_talk):
    talk = make_talk(**CHECKS)
    talk.now += 80 * HOUR
    talk.wait(5000)
    prepare(talk, "later")
    talk.broker.stop(talk.instant)
    talk.run_effects()
    talk.broker.close(talk.instant)
    talk.now -= 80 * HOUR
    talk.open()
    prepare(talk, "earlier")
    talk.wait(20_000)
    talk.now += 73 * HOUR
    talk.wait(60_000)

    assert stored(talk, EXPIRED_TOPIC) == []


def test_what_nobody_decides_expires_once_the_broker_lived_for_so_long(make_talk):
    talk = make_talk(store={"file_reserved_hours": 1}, transaction_check_interval_ms=600_000)
    prepare(talk)
    talk.wait(1_800_000)
    talk.now += 100 * HOUR
    talk.wait(1_500_000)
    assert stored(talk, EXPIRED_TOPIC) == []
    talk.restart()
    talk.wait(1_200_000)

    [copy] = stored(talk, EXPIRED_TOPIC)
    assert "longer than messages are kept" in copy.properties["TRANSACTION_EXPIRED_REASON"]
