"""Slaves get the log, all of it, in order, and nothing else."""

from __future__ import annotations

import logging
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from halfmoon.broker.copies import feeding
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.copying import WHOLE_LOG
from tests.broker.copies.slave import CopyingSlave, Port, log_of
from tests.broker.talk import SMALL, Talk

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
        port.report(peer, slave.end)


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
        ([-2], "it is behind or ahead"),
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
        ({"acl_enable": True}, "127.0.0.1:4000", False),
        ({"acl_enable": True, "slaves_from": "127.0.0.1"}, "127.0.0.1:4000", True),
    ],
)
def test_who_may_be_a_slave_is_decided_by_its_address(talk: Any, changed: dict[str, Any], remote: str, may: bool) -> None:
    talk.broker.copies.feeding = feeding.Feeding(replace(talk.settings, **changed), talk.broker.store, talk.instant)
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


def history(seed: int, disk: SimDisk) -> None:
    """Let a master with small files send to a slave whose connections break anywhere; raise AssertionError for a wrong copy."""
    random, file_bytes = Random(seed), 16 * 1024
    talk = Talk("store", disk=disk, store={"commit_log_file_bytes": file_bytes})
    port, slave, peer, connected = Port(talk), CopyingSlave(file_bytes), 0, False
    for _ in range(40):
        step = random.choice(("send", "send", "receive", "receive", "receive", "break", "wait"))
        if step == "send":
            fill(talk, random.randint(1, 4), random.randint(0, 9000))
        elif not connected:
            peer, connected = peer + 1, True
            port.report(port.connect(peer), slave.end)
        elif step == "receive":
            slave.receive(port.take(peer, random.randint(0, 40_000)))
            port.report(peer, slave.end)
        elif step == "wait":
            port.wait(random.randint(0, 6000))
            port.report(peer, slave.end)
        else:
            port.core.lost(peer, talk.instant)
            slave.cut()
            connected = False
        assert not port.closed
        assert log_of(talk, slave.start)[: len(slave.log)] == bytes(slave.log)
    if not connected:
        port.report(port.connect(peer + 1), slave.end)
        peer += 1
    port.turn()
    copy(port, peer, slave)
    assert bytes(slave.log) == log_of(talk, slave.start)
    talk.broker.close(talk.instant)


def histories(count: int) -> None:
    for seed in range(count):
        history(seed, SimDisk(Random(seed)))


def test_a_slave_has_the_log_of_its_master_whatever_happens_to_connections() -> None:
    histories(100)


@pytest.mark.parametrize("fault", ["a_byte_less", "across_files", "from_the_start"])
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    real = feeding.Feeding._chunks

    def faulty(self: Any, start: int, stop: int) -> Any:
        if fault == "a_byte_less":
            stop -= stop - start > 1
        elif fault == "from_the_start" and start:
            start = 0
        chunks = list(real(self, start, stop))
        return iter(chunks if fault != "across_files" else [feeding.CHUNK_HEADER.pack(start, stop - start), *chunks[1::2]])

    monkeypatch.setattr(feeding.Feeding, "_chunks", faulty)
    with pytest.raises(AssertionError):
        histories(20)
