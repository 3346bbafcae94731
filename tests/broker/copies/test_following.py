"""A slave of ours copies the log of a master of ours, whatever happens to their connections and to itself."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from halfmoon.broker.copies import following
from halfmoon.broker.copies.standby import Standby
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import Close, Start, Work, Write
from halfmoon.instant import Instant, instant
from halfmoon.store.settings import StoreSettings
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.copying import CHUNK_HEADER, REPORT
from tests.broker.copies.slave import Port, log_of
from tests.broker.copies.test_feeding import fill
from tests.broker.talk import SMALL, START_MS, Talk

FILE_BYTES = 16 * 1024


class Slave:
    """A slave with one connection at a time. ``sent`` are reports that have not arrived, ``reason`` is why it ended the last."""

    def __init__(self, disk: SimDisk, *, file_bytes: int = FILE_BYTES) -> None:
        self.disk, self.now, self._steady_begins = disk, START_MS, START_MS
        self.settings = StoreSettings(**{**SMALL, "commit_log_file_bytes": file_bytes})
        self.open()

    @property
    def instant(self) -> Instant:
        """Both times."""
        return instant(self.now, self.now - self._steady_begins)

    def open(self) -> None:
        """Start on its directory."""
        self.core = Standby(BrokerSettings(), self.settings, self.disk, self.instant)
        self.core.following.wants_whole_log = True
        self.sent, self.peer, self.reason = bytearray(), 0, ""

    def restart(self, *, kill: bool) -> None:
        """Stop cleanly, or be killed, and start again."""
        if kill:
            self.disk.crash(power=False)
        else:
            self.core.stop(self.instant)
            self.run_effects()
            self.core.close(self.instant)
        self.open()

    def connect(self, peer: int) -> None:
        """Be connected to the master."""
        self.peer, self.sent = peer, bytearray()
        self.core.connected(peer, "10.0.0.1:10912", self.instant)
        self.run_effects()

    def receive(self, data: bytes) -> None:
        """Let bytes arrive, and a turn pass."""
        self.core.feed(self.peer, data)
        self.core.commit(self.instant)
        self.run_effects()

    def wait(self, ms: int) -> None:
        """Let time pass, with every tick that the core asks for."""
        until = self.now + ms
        while (due := self.core.due(self.instant)) is not None and self.now + (due - self.instant.steady) <= until:
            self.now += max(0, due - self.instant.steady)
            self.core.tick(self.instant)
            self.run_effects()
        self.now = until

    def run_effects(self) -> None:
        """Carry out what the core leaves."""
        while effects := self.core.effects():
            for effect in effects:
                if isinstance(effect, Write):
                    self.sent += b"".join(map(bytes, effect.chunks))
                elif isinstance(effect, Close):
                    self.reason = effect.reason
                elif isinstance(effect, Work):
                    effect.done(effect.run(), self.instant)
                else:
                    assert isinstance(effect, Start)

    def take_reports(self) -> list[int]:
        """Take out the reports."""
        taken, self.sent = bytes(self.sent), bytearray()
        return [offset for (offset,) in REPORT.iter_unpack(taken)]


def history(seed: int) -> None:
    """Let a master send to a slave; raise AssertionError for a wrong copy."""
    random = Random(seed)
    settings = {"slave_chunk_bytes": random.choice([1024, 32 * 1024]), "store": {"commit_log_file_bytes": FILE_BYTES}}
    talk = Talk("store", disk=SimDisk(Random(seed)), **settings)
    port, slave, peer, connected = Port(talk), Slave(SimDisk(Random(seed + 1))), 0, False
    for step in [*random.choices(["send", "send", "receive", "receive", "receive", "break", "stop", "kill", "wait"], k=40), "end"]:
        ms = random.randint(0, 3000)
        if step == "send":
            fill(talk, random.randint(1, 4), random.randint(0, 9000))
        elif step == "wait":
            slave.wait(ms)
            port.wait(ms)
        elif connected and step in ("break", "stop", "kill"):
            port.core.lost(peer, talk.instant)
            slave.core.lost(peer, slave.instant)
            connected = False
            if step != "break":
                slave.restart(kill=step == "kill")
        elif not connected:
            peer, connected = peer + 1, True
            port.connect(peer)
            slave.connect(peer)
        for _ in range(500 if step == "end" else 1):
            for offset in slave.take_reports():
                port.report(peer, offset)
            port.turn()
            if step in ("receive", "end") and connected:
                slave.receive(port.take(peer, None if step == "end" else random.randint(0, 40_000)))
        assert not port.closed
        assert not slave.reason
        store = slave.core.store
        assert log_of(talk, store.min_offset)[: store.end_offset - store.min_offset] == log_of(_Broker(store), store.min_offset)
    assert slave.core.store.end_offset == talk.broker.store.end_offset
    assert slave.core.store.queue_max("T", 0) == talk.broker.store.queue_max("T", 0)


class _Broker:
    """What `log_of` looks at."""

    def __init__(self, store: Any) -> None:
        self.broker, self.store = self, store


def histories(count: int) -> None:
    for seed in range(count):
        history(seed)


def test_a_slave_has_the_log_of_its_master_whatever_happens_to_connections_and_to_itself() -> None:
    histories(40)


def _keeps_half_a_chunk(self: Any, peer: int, remote: str, now: Instant) -> None:
    chunks = self._chunks
    CONNECTED(self, peer, remote, now)
    self._chunks = chunks


def _keeps_half_a_record(self: Any, peer: int, remote: str, now: Instant) -> None:
    self._copying.again = lambda: None
    CONNECTED(self, peer, remote, now)


CONNECTED = following.Following.connected
FAULTS = [_keeps_half_a_chunk, _keeps_half_a_record]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    monkeypatch.setattr(following.Following, "connected", fault)
    with pytest.raises(AssertionError):
        histories(60)


@pytest.fixture
def slave() -> Slave:
    made = Slave(SimDisk(Random(1)))
    made.connect(1)
    return made


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (CHUNK_HEADER.pack(-5, 10), "it is no master of RocketMQ"),
        (CHUNK_HEADER.pack(0, -1), "it is no master of RocketMQ"),
        (CHUNK_HEADER.pack(0, 2**31 - 1), "it is no master of RocketMQ"),
        (b"HTTP/1.1 400 Bad Request\r\n", "it is no master of RocketMQ"),
        (CHUNK_HEADER.pack(100, 4) + b"abcd", "it cannot begin at 100"),
        (CHUNK_HEADER.pack(0, 8) + b"\0" * 8, "a record cannot have 0 bytes"),
    ],
)
def test_bytes_that_no_master_sends_end_the_connection_and_are_logged(
    slave: Slave, caplog: pytest.LogCaptureFixture, data: bytes, why: str
) -> None:
    slave.receive(data)
    assert why in slave.reason
    assert [why in record.message for record in caplog.records] == [True]
    assert not slave.core.following.is_connected
    assert slave.core.store.end_offset == 0


def test_a_chunk_for_another_place_ends_the_connection(slave: Slave) -> None:
    talk = Talk("store", disk=SimDisk(Random(1)), store={"commit_log_file_bytes": FILE_BYTES})
    fill(talk, 2)
    end, data = talk.broker.store.end_offset, log_of(talk)
    slave.receive(CHUNK_HEADER.pack(0, end) + data)
    assert slave.core.store.end_offset == end
    slave.receive(CHUNK_HEADER.pack(end + 1, 1) + b"x")
    assert f"the master sends the log from {end + 1} on, where {end} is next" in slave.reason


def test_a_failure_that_repeats_itself_is_logged_once_until_something_is_copied(
    slave: Slave, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk("store", disk=SimDisk(Random(1)), store={"commit_log_file_bytes": FILE_BYTES})
    fill(talk, 1)

    def fail() -> None:
        slave.connect(slave.peer + 1)
        slave.receive(CHUNK_HEADER.pack(-5, 10))

    fail()
    fail()
    assert len(caplog.records) == 1
    slave.connect(9)
    slave.receive(CHUNK_HEADER.pack(0, talk.broker.store.end_offset) + log_of(talk))
    fail()
    assert len(caplog.records) == 2


def test_an_empty_log_that_does_not_begin_with_the_masters_first_message_says_so(
    slave: Slave, caplog: pytest.LogCaptureFixture
) -> None:
    slave.receive(CHUNK_HEADER.pack(FILE_BYTES, 1) + b"\0")
    assert [record.message for record in caplog.records] == [
        f"the copy begins at offset {FILE_BYTES}: older messages of the master are not copied"
    ]


def test_it_reports_at_once_then_what_it_stored_then_every_5_s(slave: Slave) -> None:
    assert slave.take_reports() == [-1]
    slave.wait(4_999)
    assert slave.take_reports() == []
    slave.wait(1)
    assert slave.take_reports() == [-1]


def test_a_master_that_says_nothing_is_left_after_20_s(slave: Slave) -> None:
    slave.wait(15_000)
    slave.receive(CHUNK_HEADER.pack(0, 0))
    slave.wait(19_999)
    assert not slave.reason
    slave.wait(1)
    assert "it said nothing for 20000 ms" in slave.reason


def test_a_full_disk_ends_the_connection_and_the_next_one_goes_on(slave: Slave) -> None:
    talk = Talk("store", disk=SimDisk(Random(1)), store={"commit_log_file_bytes": FILE_BYTES})
    fill(talk, 2)
    chunk = CHUNK_HEADER.pack(0, talk.broker.store.end_offset) + log_of(talk)
    slave.disk.full = True
    slave.receive(chunk)
    assert slave.reason
    slave.disk.full = False
    slave.connect(2)
    slave.receive(chunk)
    assert slave.core.store.end_offset == talk.broker.store.end_offset
