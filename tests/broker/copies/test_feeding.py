"""Slaves get the log, all of it, in order, and nothing else."""

from __future__ import annotations

import logging
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from halfmoon.broker.copies import feeding
from halfmoon.broker.copies.admission import Admission
from halfmoon.broker.settings import BrokerRole
from halfmoon.store.journal import Kind
from halfmoon.store.timer.progress import TimerProgress, write_progress
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.copying import FRAME, LOG, REPORTS, WHOLE_LOG, ChunkReader, Hello
from halfmoon.wire.headers.offset import UpdateConsumerOffset
from tests.broker.copies.slave import MEMBER, CopyingSlave, OurSlave, Port, hello, log_of
from tests.broker.talk import SMALL, Talk
from tests.store.driving import draft

FILE_BYTES = SMALL["commit_log_file_bytes"]


@pytest.fixture
def port(talk: Any) -> Port:
    return Port(talk)


def fill(talk: Any, count: int = 3, size: int = 1000) -> None:
    for _ in range(count):
        assert talk.send("T", bytes(size)).code == 0


def copy(port: Port, peer: int, slave: CopyingSlave) -> None:
    """Let a slave copy until nothing more comes."""
    while data := port.take(peer):
        slave.receive(data)
        port.say(peer, slave.report())
        port.wait(feeding.GATHER_MS)


def test_an_empty_slave_copies_the_last_file_and_what_follows(talk: Any, port: Port) -> None:
    fill(talk, 6, 100_000)
    start, slave = 2 * FILE_BYTES, CopyingSlave(FILE_BYTES)
    assert start < talk.broker.store.end_offset < start + FILE_BYTES
    port.connect(1)
    port.turn()
    assert not port.sent[1], "it says nothing before the slave has reported"
    port.report(1, 0)
    copy(port, 1, slave)
    fill(talk, 4, 100_000)
    port.turn()
    copy(port, 1, slave)
    assert (slave.start, bytes(slave.log)) == (start, log_of(talk, start))
    assert slave.end > start + FILE_BYTES, "blank tails are copied, too"


def test_an_empty_slave_of_ours_copies_the_log_from_the_oldest_file_on(talk: Any, port: Port) -> None:
    fill(talk, 6, 100_000)
    slave = CopyingSlave(FILE_BYTES)
    port.report(port.connect(1), WHOLE_LOG)
    copy(port, 1, slave)
    assert (slave.start, bytes(slave.log)) == (0, log_of(talk))


def test_a_slave_goes_on_where_it_ended(talk: Any, port: Port) -> None:
    fill(talk)
    slave = CopyingSlave(FILE_BYTES)
    port.report(port.connect(1), 0)
    copy(port, 1, slave)
    port.core.lost(1, talk.instant)
    fill(talk)
    port.report(port.connect(2), slave.end)
    copy(port, 2, slave)
    assert bytes(slave.log) == log_of(talk)


def test_an_empty_slave_of_an_empty_master_may_repeat_that_it_is_empty(talk: Any, port: Port) -> None:
    port.connect(1)
    for _ in range(3):
        port.report(1, 0)
    fill(talk)
    port.turn()
    port.report(1, 0)  # it was under way
    slave = CopyingSlave(FILE_BYTES)
    copy(port, 1, slave)
    assert bytes(slave.log) == log_of(talk)
    assert not port.closed


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ([10**9], "it is behind or ahead, or another broker's"),
        ([-3], "it is behind or ahead"),
        ([0, -2], "reports offset -2"),
        ([-(2**63)], "it is behind or ahead"),
        ([0, 10**9], "reports offset 1000000000, but reported 0 before"),
        ([0, 500, 499], "reports offset 499, but reported 500 before"),
        ([0, -1], "reports offset -1"),
    ],
)
def test_a_report_that_cannot_be_true_ends_the_connection_and_is_logged(
    talk: Any, port: Port, caplog: pytest.LogCaptureFixture, reports: list[int], why: str
) -> None:
    fill(talk)
    port.connect(1)
    for offset in reports:
        port.report(1, offset)
    assert why in port.closed[1]
    assert [why in record.message and "10.0.0.9:4000" in record.message for record in caplog.records] == [True]
    assert not port.core.statuses(talk.instant.steady)


def test_a_slave_behind_the_oldest_file_is_refused_with_both_offsets(talk: Any, port: Port) -> None:
    fill(talk, 6, 100_000)
    talk.broker.store.log.segments.drop_before(FILE_BYTES)
    port.report(port.connect(1), 1000)
    assert f"its log ends at 1000, but this log is from {FILE_BYTES} to" in port.closed[1]


def test_a_slave_whose_next_file_was_deleted_is_refused(talk: Any, port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(talk, 6, 100_000)
    monkeypatch.setattr(feeding, "WINDOW_BYTES", 1000)
    port.report(port.connect(1), 10)
    talk.broker.store.log.segments.drop_before(FILE_BYTES)
    port.report(1, 500)
    assert "it needs offset 1010, but the oldest file begins at" in port.closed[1]


def test_a_slave_is_sent_a_bounded_amount_ahead(talk: Any, port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "WINDOW_BYTES", 50_000)
    fill(talk, 200)
    slave = CopyingSlave(FILE_BYTES)
    port.report(port.connect(1), 0)
    port.turn()
    assert 50_000 < len(port.sent[1]) < 51_000
    copy(port, 1, slave)
    assert bytes(slave.log) == log_of(talk)


def test_few_bytes_that_nobody_waits_for_are_gathered_for_some_milliseconds(talk: Any, port: Port) -> None:
    port.report(port.connect(1), 0)
    fill(talk, 1)
    port.turn()
    sent, wakes = len(port.sent[1]), port.wakes
    fill(talk, 3)
    port.turn()
    assert (len(port.sent[1]), port.wakes) == (sent, wakes + 1), "woken once, to set its timer"
    port.wait(feeding.GATHER_MS - 1)
    assert len(port.sent[1]) == sent
    port.wait(1)
    assert sum(1 for _ in ChunkReader().read(bytes(port.sent[1]))) == 1
    assert port.sent[1].count(b"CLUSTER") == 4
    fill(talk, 2, feeding.GATHER_BYTES // 2)
    port.turn()
    assert port.sent[1].count(b"CLUSTER") == 6, "many bytes do not wait"


def test_what_a_sync_master_stores_is_sent_at_once() -> None:
    talk = Talk("store", disk=SimDisk(Random(1)), role=BrokerRole.SYNC_MASTER)
    port = Port(talk)
    port.report(port.connect(1), 0)
    for count in (1, 2):
        talk.broker.store.append("T", 0, [draft()], talk.now)
        talk.broker.effects()
        port.turn()
        assert port.sent[1].count(b"hello") == count


@pytest.fixture
def behind(talk: Any, port: Port, monkeypatch: pytest.MonkeyPatch) -> CopyingSlave:
    """A slave that lacks a log of 100 messages, which is much, and is connected while others send."""
    monkeypatch.setattr(feeding, "WINDOW_BYTES", 20_000)
    monkeypatch.setattr(feeding, "CATCH_UP_BYTES", 2_000)
    monkeypatch.setattr(feeding, "GATHER_BYTES", 1_000)
    port.connect(1)
    fill(talk, 100)
    return CopyingSlave(FILE_BYTES)


def test_a_slave_far_behind_gets_little_at_a_time_while_the_master_stores(talk: Any, port: Port, behind: CopyingSlave) -> None:
    port.report(1, 0)
    end = talk.broker.store.end_offset
    for _ in range(10):
        behind.receive(port.take(1))
        port.say(1, behind.report())
        assert not port.sent[1], "no more within a millisecond"
        port.wait(1)
        assert len(port.sent[1]) < 2_500
    assert 18_000 < behind.end < 22_000
    assert port.core.count == 1
    port.wait(feeding.BUSY_MS)
    while data := port.take(1):
        behind.receive(data)
        port.say(1, behind.report())
    assert behind.end == end, "in no time, once nobody sends"


def test_a_slave_far_behind_catches_up_with_a_master_that_stores_faster_than_that(
    talk: Any, port: Port, behind: CopyingSlave
) -> None:
    port.report(1, 0)
    turns = 0
    while talk.broker.store.end_offset - behind.end > 20_000:
        turns += 1
        fill(talk, 5)
        port.wait(1)
        behind.receive(port.take(1))
        port.say(1, behind.report())
        assert turns < 100
    assert turns > 10


@pytest.mark.parametrize("waited_for", [True, False])
def test_a_member_that_is_waited_for_gets_everything_at_once(
    talk: Any, port: Port, behind: CopyingSlave, *, waited_for: bool
) -> None:
    port.core.pair = StubPair()
    port.core.pair.waited_for = frozenset({MEMBER.hex()}) if waited_for else frozenset()
    port.say(1, hello(epoch=7))
    assert (len(port.sent[1]) > 20_000) == waited_for


def test_a_slave_that_does_not_read_is_sent_nothing_more(talk: Any, port: Port) -> None:
    port.report(port.connect(1), 0)
    port.core.slow(1, is_slow=True)
    fill(talk)
    port.turn()
    assert not port.sent[1]
    port.core.slow(1, is_slow=False)
    port.turn()
    assert port.sent[1]


def test_heartbeats_keep_a_slave_that_lacks_nothing(talk: Any, port: Port) -> None:
    slave = CopyingSlave(FILE_BYTES)
    port.report(port.connect(1), 0)
    for _ in range(3):
        port.wait(5000)
        port.report(1, 0)
    slave.receive(port.take(1))
    assert slave.heartbeats == 3
    assert not port.closed


@pytest.mark.parametrize("reports", [False, True])
def test_a_slave_that_says_nothing_is_closed_after_20_s(talk: Any, port: Port, reports: bool) -> None:
    port.connect(1)
    if reports:
        port.report(1, 0)
    port.wait(19_999)
    assert not port.closed
    port.wait(1)
    assert "it said nothing for 20000 ms" in port.closed[1]


@pytest.mark.parametrize(
    ("changed", "remote", "may"),
    [
        ({}, "10.0.0.9:4000", True),
        ({"slaves_from": "10.0.0.0/24,::1"}, "10.0.0.9:4000", True),
        ({"slaves_from": "10.0.0.0/24"}, "10.0.1.9:4000", False),
    ],
)
def test_who_may_be_a_slave_is_decided_by_its_address(talk: Any, changed: dict[str, Any], remote: str, may: bool) -> None:
    before = talk.broker.copies.feeding
    changed_settings = replace(talk.settings, **changed)
    admission = Admission(changed_settings, talk.instant.steady)
    talk.broker.copies.feeding = feeding.Feeding(changed_settings, talk.broker.store, before.states, admission, talk.instant)
    port = Port(talk)
    port.connect(1, remote)
    port.report(1, 0)
    assert (1 in port.closed) is not may
    assert (port.core.count == 1) is may


def test_slaves_are_bounded(talk: Any, port: Port) -> None:
    for peer in range(feeding.SLAVES_MAX + 1):
        port.connect(peer)
    assert list(port.closed) == [feeding.SLAVES_MAX]


def test_the_port_is_woken_when_the_log_grows_and_only_then(talk: Any, port: Port) -> None:
    fill(talk)
    assert port.wakes == 0, "nobody copies"
    port.connect(1)
    fill(talk)
    assert port.wakes == 3
    talk.pull("T")
    assert port.wakes == 3


def test_how_far_a_slave_is_behind_is_told_in_bytes_and_time(talk: Any, port: Port) -> None:
    slave = CopyingSlave(FILE_BYTES)
    port.report(port.connect(1), 0)
    fill(talk, 1)
    talk.now += 250
    [status] = port.core.statuses(talk.instant.steady)
    assert (status.behind_bytes, status.behind_ms, status.is_in_sync) == (talk.broker.store.end_offset, 250, True)
    port.turn()
    copy(port, 1, slave)
    [status] = port.core.statuses(talk.instant.steady)
    assert (status.behind_bytes, status.behind_ms) == (0, 0)


def test_a_lost_slave_is_logged_once(talk: Any, port: Port, caplog: pytest.LogCaptureFixture) -> None:
    port.report(port.connect(1), 0)
    with caplog.at_level(logging.WARNING):
        port.core.lost(1, talk.instant)
        port.core.lost(1, talk.instant)
    assert [record.message for record in caplog.records] == ["slave lost: peer=10.0.0.9:4000 copied_offset=0"]


# ---------------------------------------------------------------- slaves of ours


@pytest.fixture
def ours() -> OurSlave:
    return OurSlave(FILE_BYTES)


def write_row(talk: Any, number: int = 0) -> tuple[int, bytes | None]:
    """Write a row as before deliveries of delayed messages; return from which offset on it counts, and its value."""
    at = talk.broker.store.end_offset
    write_progress(talk.broker.store.journal, TimerProgress(at, {1: number}, (), 0))
    return at, row_of(talk)


def row_of(talk: Any) -> bytes | None:
    value: bytes | None = talk.broker.store.journal.value(Kind.DELAYS)
    return value


def files_of(talk: Any) -> dict[str, bytes]:
    tables = talk.broker.tables
    return {path: data for path in tables.paths() if (data := tables.dump(path)).strip()}


def test_a_slave_of_ours_gets_everything_beside_the_log_and_the_log(talk: Any, port: Port, ours: OurSlave) -> None:
    fill(talk, 6, 100_000)
    write_row(talk)
    port.say(port.connect(1), ours.greeting())
    copy(port, 1, ours)
    assert (ours.start, bytes(ours.log)) == (0, log_of(talk))
    assert ours.files == files_of(talk)
    assert ours.rows == {(Kind.DELAYS, b""): row_of(talk)}


def test_a_state_comes_before_the_log_that_follows_it(talk: Any, port: Port, ours: OurSlave) -> None:
    port.say(port.connect(1), ours.greeting())
    copy(port, 1, ours)
    for number in range(3):
        write_row(talk, number)
        expected, end = row_of(talk), talk.broker.store.end_offset
        fill(talk)
        port.turn()
        port.wait(feeding.GATHER_MS)
        ours.receive(port.take(1))  # it asserts the order
        assert ours.rows[Kind.DELAYS, b""] == expected
        assert ours.end > end


def test_changes_wake_the_port_for_slaves_of_ours_alone(talk: Any, port: Port) -> None:
    port.report(port.connect(1), 0)
    woken = port.wakes
    write_row(talk)
    assert port.wakes == woken
    port.say(port.connect(2), hello(talk.broker.store.end_offset))
    woken = port.wakes
    write_row(talk)
    assert port.wakes == woken + 1


def test_a_table_that_is_saved_seldom_is_sent_soon(talk: Any, port: Port, ours: OurSlave) -> None:
    fill(talk)
    port.say(port.connect(1), ours.greeting())
    copy(port, 1, ours)
    talk.ask(UpdateConsumerOffset(consumer_group="G", topic="T", queue_id=0, commit_offset=2))
    port.wait(feeding.LOOK_MS)
    port.turn()
    copy(port, 1, ours)
    assert ours.files == files_of(talk)


def test_a_stamp_comes_only_when_everything_was_sent(
    talk: Any, port: Port, ours: OurSlave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "WINDOW_BYTES", 2000)
    fill(talk)
    port.say(port.connect(1), ours.greeting())
    ours.receive(port.take(1))
    port.wait(5_000)
    assert port.take(1) == FRAME.pack(LOG, ours.end, 0), "a part of the log was not sent"
    port.say(1, ours.report())
    copy(port, 1, ours)
    port.wait(5_000)
    ours.receive(port.take(1))
    assert len(ours.stamps) == 1
    port.say(1, ours.report())
    port.core.slow(1, is_slow=True)
    write_row(talk)
    port.turn()
    port.wait(5_000)
    ours.receive(port.take(1))
    assert len(ours.stamps) == 1, "a row was not sent"
    port.core.slow(1, is_slow=False)
    port.turn()
    port.wait(5_000)
    ours.receive(port.take(1))
    assert len(ours.stamps) == 2


def test_a_stamp_that_was_not_sent_cannot_come_back_nor_an_older_one(talk: Any, port: Port, ours: OurSlave) -> None:
    for peer, stamp in enumerate(["later", "earlier"]):
        ours.cut()
        port.say(port.connect(peer), ours.greeting())
        copy(port, peer, ours)
        port.wait(5_000)
        copy(port, peer, ours)
        assert not port.closed.get(peer), "its own stamp may come back"
        port.say(peer, REPORTS.pack(ours.end, ours.come, ours.stamps[-1] + (1 if stamp == "later" else -1)))
        assert "it reports" in port.closed[peer]


@pytest.mark.parametrize("wrong", [1, -1])
def test_a_slave_that_reports_more_states_than_it_was_sent_or_fewer_than_before_is_refused(
    talk: Any, port: Port, ours: OurSlave, wrong: int
) -> None:
    port.say(port.connect(1), ours.greeting())
    copy(port, 1, ours)
    assert not port.closed
    port.say(1, REPORTS.pack(ours.end, ours.come + wrong, 0))
    assert f"but was sent {ours.come} states" in port.closed[1]


@pytest.mark.parametrize("offset", [10**9, -2, -(2**63)])
def test_a_hello_with_a_log_that_cannot_be_is_refused(talk: Any, port: Port, offset: int) -> None:
    fill(talk)
    port.say(port.connect(1), hello(offset))
    assert "it is behind or ahead" in port.closed[1]


class StubPair:
    """A pair of epoch 7 that wants stamps each second."""

    epoch, stamp_ms, turns = 7, 1000, 0
    waited_for = frozenset[str]()

    def refusal(self, hello: Hello) -> str | None:
        return None if hello.epoch == self.epoch else f"it expects epoch {hello.epoch}"

    def turn(self, now: Any) -> None:
        self.turns += 1

    def due(self, now: Any) -> None:
        return None


def test_in_a_pair_a_hello_of_another_epoch_is_refused(talk: Any, port: Port) -> None:
    port.core.pair = StubPair()
    for epoch in (6, 8, -1):
        port.say(port.connect(epoch), hello(epoch=epoch))
        assert port.closed[epoch] == f"it expects epoch {epoch}"
    port.say(port.connect(1), hello(epoch=7))
    assert 1 not in port.closed
    assert port.core.count == 1


def test_in_a_pair_stamps_come_as_often_as_it_wants_to_members_that_have_everything(talk: Any, port: Port, ours: OurSlave) -> None:
    port.core.pair = StubPair()
    port.say(port.connect(1), hello(epoch=7))
    copy(port, 1, ours)
    port.report(port.connect(2), 0)
    port.take(2)
    before, turns = len(ours.stamps), port.core.pair.turns
    for _ in range(3):
        port.wait(1000)
        copy(port, 1, ours)
    assert len(ours.stamps) == before + 3
    assert port.core.pair.turns >= turns + 3
    assert port.take(2) == b"", "a slave of RocketMQ gets heartbeats, at their time"


@pytest.mark.parametrize("kept", [-5, 0, 100, 10**9])
def test_a_hello_claims_no_more_than_its_log(talk: Any, port: Port, kept: int) -> None:
    fill(talk)
    end = talk.broker.store.end_offset
    port.say(port.connect(1), hello(end, kept=kept))
    assert [status.copied_offset for status in port.core.statuses(talk.instant.steady)] == [min(max(kept, 0), end)]


def test_a_slave_of_ours_that_kept_nothing_yet_gets_a_log_whose_first_files_are_gone(
    talk: Any, port: Port, ours: OurSlave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "WINDOW_BYTES", 50_000)
    fill(talk, 6, 100_000)
    talk.broker.store.log.segments.drop_before(FILE_BYTES)
    port.say(port.connect(1), hello(FILE_BYTES, kept=0))
    copy(port, 1, ours)
    assert (ours.start, bytes(ours.log)) == (FILE_BYTES, log_of(talk))
