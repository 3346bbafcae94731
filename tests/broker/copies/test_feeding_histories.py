"""Histories of a master and a slave whose connections break anywhere: the slave gets the log and the states, in order."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from halfmoon.broker.copies import feeding, states
from halfmoon.store.journal import Kind
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.copying import CHUNK_HEADER
from tests.broker.copies.slave import CopyingSlave, OurSlave, Port, log_of
from tests.broker.copies.test_feeding import copy, files_of, fill, row_of, write_row
from tests.broker.talk import Talk


def history(seed: int, disk: SimDisk, kind: type[CopyingSlave]) -> None:
    """Let a master with small files send to a slave whose connections break anywhere; raise AssertionError for a wrong copy."""
    random, file_bytes = Random(seed), 16 * 1024
    talk = Talk("store", disk=disk, store={"commit_log_file_bytes": file_bytes})
    port, slave, peer, connected = Port(talk), kind(file_bytes), 0, False
    rows = list[Any]()
    for _ in range(40):
        step = random.choice(("send", "send", "row", "receive", "receive", "receive", "break", "wait"))
        if step == "send":
            fill(talk, random.randint(1, 4), random.randint(0, 9000))
        elif step == "row":
            rows.append(write_row(talk, len(rows)))
            fill(talk, 1)
        elif not connected:
            peer, connected = peer + 1, True
            port.say(port.connect(peer), slave.greeting())
        elif step == "receive":
            slave.receive(port.take(peer, random.randint(0, 40_000)))
            port.say(peer, slave.report())
        elif step == "wait":
            port.wait(random.randint(0, 6000))
            port.say(peer, slave.report())
        else:
            port.core.lost(peer, talk.instant)
            slave.cut()
            connected = False
        assert not port.closed
        assert log_of(talk, slave.start)[: len(slave.log)] == bytes(slave.log)
        if isinstance(slave, OurSlave):
            check_row(slave.rows.get((Kind.DELAYS, b"")), slave.end, rows)
    if not connected:
        peer += 1
        port.say(port.connect(peer), slave.greeting())
    port.turn()
    port.wait(feeding.GATHER_MS)
    copy(port, peer, slave)
    assert bytes(slave.log) == log_of(talk, slave.start)
    if isinstance(slave, OurSlave):
        assert slave.files == files_of(talk)
        assert slave.rows.get((Kind.DELAYS, b"")) == row_of(talk)
    talk.broker.close(talk.instant)


def check_row(has: bytes | None, end: int, rows: list[tuple[int, bytes | None]]) -> None:
    """Raise AssertionError unless a broker that starts here knows of each delivery that the log may have, and of no other."""
    known = next((number for number, (_, value) in enumerate(rows, 1) if value == has), 0)
    assert known >= sum(at < end for at, _ in rows), "the log goes beyond a row that is missing"
    assert known <= sum(at <= end for at, _ in rows), "a row counts before its log"


def histories(count: int, kind: type[CopyingSlave]) -> None:
    for seed in range(count):
        history(seed, SimDisk(Random(seed)), kind)


@pytest.mark.parametrize("kind", [CopyingSlave, OurSlave])
def test_a_slave_has_the_log_of_its_master_whatever_happens_to_connections(kind: type[CopyingSlave]) -> None:
    histories(100, kind)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        *[(fault, kind) for kind in (CopyingSlave, OurSlave) for fault in ("a_byte_less", "from_the_start")],
        ("across_files", CopyingSlave),  # one of ours takes the log however it is cut
    ],
)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str, kind: type[CopyingSlave]) -> None:
    real = feeding.Feeding._chunks

    def faulty(self: Any, slave: Any, stop: int) -> Any:
        start = slave.next
        if fault == "a_byte_less":
            stop -= stop - start > 1
        elif fault == "from_the_start":
            slave.next = 0
        chunks = list(real(self, slave, stop))
        slave.next = start
        return iter([CHUNK_HEADER.pack(start, stop - start), *chunks[1::2]] if fault == "across_files" and chunks else chunks)

    monkeypatch.setattr(feeding.Feeding, "_chunks", faulty)
    with pytest.raises(AssertionError):
        histories(20, kind)


def _states_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    real = states.States.since
    monkeypatch.setattr(states.States, "since", lambda *args: reversed(list(real(*args))))


def _the_newest_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = states.States.since
    monkeypatch.setattr(states.States, "since", lambda self, number, offset: real(self, number, 2**62))


def _the_log_first(monkeypatch: pytest.MonkeyPatch) -> None:
    real, send = feeding.Feeding._send_states, feeding.Feeding._send

    def log_first(self: Any, peer: int, slave: Any, now: Any) -> bool:
        more = send(self, peer, slave, now)
        if slave.hello is not None and slave.next is not None and not slave.is_slow:
            real(self, peer, slave)
        return more

    monkeypatch.setattr(feeding.Feeding, "_send_states", lambda *args: None)
    monkeypatch.setattr(feeding.Feeding, "_send", log_first)


@pytest.mark.parametrize("plant", [_states_out_of_order, _the_newest_row_alone, _the_log_first])
def test_a_planted_fault_in_states_is_found(monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        histories(40, OurSlave)
