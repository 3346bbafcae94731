"""A slave of ours copies the log of a master of ours, whatever happens to their connections and to itself."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from halfmoon.broker.copies import following
from halfmoon.broker.copies.feeding import GATHER_MS
from halfmoon.broker.copies.standby import Standby
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import Close, Start, Work, Write
from halfmoon.instant import Instant, instant
from halfmoon.store.epochs import Epochs
from halfmoon.store.journal import Kind
from halfmoon.store.settings import StoreSettings
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.copying import (
    CHUNK_HEADER,
    FILE,
    FRAME,
    GREETING,
    HELLO,
    LOG,
    REPORT,
    REPORTS,
    STAMP,
    STATE,
    WHOLE_LOG,
    Hello,
    Report,
    State,
    encode_state,
)
from tests.broker.copies.slave import MEMBER, Port, log_of
from tests.broker.copies.test_feeding import files_of, fill, write_row
from tests.broker.copies.test_feeding_histories import check_row
from tests.broker.talk import SMALL, START_MS, Talk

FILE_BYTES = 16 * 1024


class Slave:
    """A slave with one connection at a time. ``sent`` are reports that have not arrived, ``reason`` is why it ended the last.

    ``ours``: its master is one of ours. ``held`` keeps works; None: they run at once. ``on_append`` is called after each append.
    """

    def __init__(self, disk: SimDisk, *, file_bytes: int = FILE_BYTES, ours: bool = False, **store: Any) -> None:
        self.disk, self.now, self._steady_begins, self._ours = disk, START_MS, START_MS, ours
        self.settings = StoreSettings(**{**SMALL, "commit_log_file_bytes": file_bytes, **store})
        self.held: list[Work[Any]] | None = None
        self.on_append: Callable[[], None] = lambda: None
        self.open()

    @property
    def instant(self) -> Instant:
        """Both times."""
        return instant(self.now, self.now - self._steady_begins)

    def open(self) -> None:
        """Start on its directory."""
        self.core = Standby(BrokerSettings(), self.settings, self.disk, Epochs.load(self.disk, Random(7)), self.instant)
        self.core.following.hello = Hello(MEMBER, 1, WHOLE_LOG) if self._ours else None
        self.sent, self.peer, self.reason = bytearray(), 0, ""
        copying = self.core.store.copying()
        append = copying._append

        def appended(data: bytes, records: Any) -> None:
            append(data, records)
            self.on_append()

        copying._append = appended  # type: ignore[method-assign]

    @property
    def row(self) -> bytes | None:
        """The row about delayed messages."""
        return self.core.store.journal.value(Kind.DELAYS)

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
                    self.finish(effect) if self.held is None else self.held.append(effect)
                else:
                    assert isinstance(effect, Start)

    def finish(self, work: Work[Any]) -> None:
        """Run a work, and let a turn pass."""
        try:
            result = work.run()
        except OSError as exc:
            result = exc
        work.done(result, self.instant)

    def take_sent(self) -> bytes:
        """Take out what was sent."""
        taken, self.sent = bytes(self.sent), bytearray()
        return taken

    def take_reports(self) -> list[int]:
        """Take out the reports to a master of RocketMQ."""
        return [offset for (offset,) in REPORT.iter_unpack(self.take_sent())]

    def take_our_reports(self) -> list[Report]:
        """Take out the reports to a master of ours."""
        return list(map(Report._make, REPORTS.iter_unpack(self.take_sent())))


def history(seed: int, *, ours: bool) -> None:
    """Let a master send to a slave; raise AssertionError for a wrong copy."""
    random, rows = Random(seed), list[Any]()
    settings = {"slave_chunk_bytes": random.choice([1024, 32 * 1024]), "store": {"commit_log_file_bytes": FILE_BYTES}}
    talk = Talk("store", disk=SimDisk(Random(seed)), **settings)
    port, slave, peer, connected = Port(talk), Slave(SimDisk(Random(seed + 1)), ours=ours), 0, False
    if ours:
        slave.on_append = lambda: check_row(slave.row, slave.core.store.end_offset, rows)
    steps = ["send", "row", "receive", "receive", "receive", "break", "stop", "kill", "wait"]
    for step in [*random.choices(steps, k=40), "end"]:
        ms = random.randint(0, 3000)
        if step == "send":
            fill(talk, random.randint(1, 4), random.randint(0, 9000))
        elif step == "row":
            for _ in range(random.randint(1, 3)):
                rows.append(write_row(talk, len(rows)))
                fill(talk, 1, random.randint(0, 500))
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
            port.say(peer, slave.take_sent())
            if step == "end":
                port.wait(GATHER_MS)
            if step in ("receive", "end") and connected:
                slave.receive(port.take(peer, None if step == "end" else random.randint(0, 40_000)))
        assert not port.closed
        assert not slave.reason
        store = slave.core.store
        if ours:
            check_row(slave.row, store.end_offset, rows)
        assert log_of(talk, store.min_offset)[: store.end_offset - store.min_offset] == log_of(_Broker(store), store.min_offset)
    assert slave.core.store.end_offset == talk.broker.store.end_offset
    assert slave.core.store.queue_max("T", 0) == talk.broker.store.queue_max("T", 0)
    if ours:
        assert slave.row == talk.broker.store.journal.value(Kind.DELAYS)
        assert {path: slave.disk.read(path) for path in files_of(talk)} == files_of(talk)


class _Broker:
    """What `log_of` looks at."""

    def __init__(self, store: Any) -> None:
        self.broker, self.store = self, store


def histories(count: int, *, ours: bool) -> None:
    for seed in range(count):
        history(seed, ours=ours)


@pytest.mark.parametrize("ours", [False, True])
def test_a_slave_has_the_log_of_its_master_whatever_happens_to_connections_and_to_itself(ours: bool) -> None:
    histories(40, ours=ours)


def _keeps_half_a_chunk(self: Any, peer: int, remote: str, now: Instant) -> None:
    frames = self._frames
    CONNECTED(self, peer, remote, now)
    self._frames = frames


def _keeps_half_a_record(self: Any, peer: int, remote: str, now: Instant) -> None:
    self._copying.again = lambda: None
    CONNECTED(self, peer, remote, now)


CONNECTED = following.Following.connected
FAULTS = [_keeps_half_a_chunk, _keeps_half_a_record]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    monkeypatch.setattr(following.Following, "connected", fault)
    with pytest.raises(AssertionError):
        histories(60, ours=False)


OF_STATES = {
    "rows_after_the_whole_chunk": ("_next_state", lambda self, start, end: None),
    "rows_at_once": ("_take_state", lambda self, at, state: TAKE_STATE(self, 0, state)),
    "states_of_the_connection_before": ("_forget_states", lambda self: None),
}
TAKE_STATE = following.Following._take_state


@pytest.mark.parametrize("fault", OF_STATES)
def test_a_planted_fault_in_states_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(following.Following, *OF_STATES[fault])
    with pytest.raises(AssertionError):
        histories(60, ours=True)


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
    assert slave.take_reports() == [0]
    slave.wait(4_999)
    assert slave.take_reports() == []
    slave.wait(1)
    assert slave.take_reports() == [0]


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


# ---------------------------------------------------------------- a master of ours


@pytest.fixture
def ours() -> Slave:
    """A slave that is connected to a master of ours, and has said so."""
    made = Slave(SimDisk(Random(1)), ours=True)
    made.connect(1)
    made.take_sent()
    return made


@pytest.fixture
def talk() -> Talk:
    return Talk("store", disk=SimDisk(Random(1)), store={"commit_log_file_bytes": FILE_BYTES})


def log_frame(offset: int, data: bytes) -> bytes:
    return FRAME.pack(LOG, offset, len(data)) + data


def state_frame(number: int, name: str = "config/topics.json", value: bytes = b"{}", *, at: int = 0, kind: int = FILE) -> bytes:
    data = encode_state(State(number, kind, name.encode(), value))
    return FRAME.pack(STATE, at, len(data)) + data


def test_it_greets_with_its_id_the_epoch_and_its_log(talk: Talk) -> None:
    slave = Slave(SimDisk(Random(1)), ours=True)
    slave.connect(1)
    assert slave.take_sent() == REPORT.pack(GREETING) + HELLO.pack(MEMBER, 1, WHOLE_LOG, 0)
    fill(talk)
    end = talk.broker.store.end_offset
    slave.receive(log_frame(0, log_of(talk)))
    assert slave.take_our_reports() == [Report(end, 0, 0)]
    slave.core.following.hello = Hello(MEMBER, 5, WHOLE_LOG)
    slave.connect(2)
    assert slave.take_sent() == REPORT.pack(GREETING) + HELLO.pack(MEMBER, 5, end, end)


def test_rows_are_there_at_every_byte_of_the_log_that_needs_them_and_not_before(talk: Talk) -> None:
    port, slave, rows = Port(talk), Slave(SimDisk(Random(1)), ours=True), list[Any]()
    slave.connect(1)
    port.say(port.connect(1), slave.take_sent())
    for number in range(4):
        rows.append(write_row(talk, number))
        fill(talk, 1 + number, 50)
    port.turn()
    data, seen = port.take(1), list[int]()

    def look() -> None:
        check_row(slave.row, slave.core.store.end_offset, rows)
        seen.append(next(number for number, (_, value) in enumerate(rows) if value == slave.row))

    slave.on_append = look
    for at in range(len(data)):
        slave.receive(data[at : at + 1])
        check_row(slave.row, slave.core.store.end_offset, rows)
    assert seen == sorted(seen)
    assert set(seen) == {0, 1, 2, 3}
    assert slave.core.store.end_offset == talk.broker.store.end_offset


def test_a_row_whose_log_does_not_come_is_dropped_with_the_connection(talk: Talk, ours: Slave) -> None:
    fill(talk, 2)
    end, data = talk.broker.store.end_offset, log_of(talk)
    ours.receive(state_frame(1, "", b"row", at=end, kind=Kind.DELAYS))
    ours.receive(log_frame(0, data[:-1]))
    assert ours.row is None
    ours.core.lost(1, ours.instant)
    ours.connect(2)
    begin = ours.core.store.end_offset
    ours.receive(log_frame(begin, data[begin:]))
    assert (ours.core.store.end_offset, ours.row) == (end, None)


def test_nothing_is_appended_behind_a_row_that_cannot_be_written(talk: Talk, ours: Slave, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(talk)
    at = talk.broker.store.end_offset
    fill(talk)
    data = log_of(talk)

    def full(*rows: Any) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(ours.core.store.journal, "write", full)
    row = state_frame(1, "", b"row", at=at, kind=Kind.DELAYS) + state_frame(2, "", b"row", at=at, kind=Kind.DELAYS)
    ours.receive(row + log_frame(0, data[: at + 10]) + log_frame(at + 10, data[at + 10 :]))
    assert "no space left" in ours.reason
    assert ours.core.store.end_offset == at


def test_tables_are_saved_one_after_the_other_and_counted_in_their_order(ours: Slave) -> None:
    ours.held = []
    ours.receive(state_frame(1, value=b'{"a":1}'))
    ours.receive(state_frame(2, "config/brokerUptime.json") + state_frame(3, value=b'{"a":2}') + state_frame(4, value=b'{"a":3}'))
    assert ours.take_sent() == b""
    for states, topics in ((1, b'{"a":1}'), (2, b'{"a":1}'), (4, b'{"a":3}')):
        ours.finish(ours.held.pop())
        assert ours.held == []
        ours.run_effects()
        assert (ours.take_our_reports(), ours.disk.read("config/topics.json")) == ([Report(0, states, 0)], topics)
    assert ours.held == []


def test_a_table_that_cannot_be_saved_is_not_counted_and_ends_the_connection(ours: Slave) -> None:
    ours.disk.full = True
    ours.receive(state_frame(1))
    assert "what the master keeps beside its log cannot be saved" in ours.reason
    assert ours.take_sent() == b""


def test_a_save_of_a_connection_before_is_not_counted_for_the_next(ours: Slave) -> None:
    ours.held = []
    ours.receive(state_frame(1, value=b'{"a":1}'))
    ours.core.lost(1, ours.instant)
    ours.connect(2)
    ours.take_sent()
    ours.receive(state_frame(1, value=b'{"a":2}'))
    ours.finish(ours.held.pop())
    ours.run_effects()
    assert ours.take_sent() == b""
    ours.finish(ours.held.pop())
    ours.run_effects()
    assert ours.take_our_reports() == [Report(0, 1, 0)]
    assert ours.disk.read("config/topics.json") == b'{"a":2}'


def test_with_sync_flush_what_is_durable_is_reported(talk: Talk) -> None:
    slave = Slave(SimDisk(Random(1)), ours=True, flush_disk_type="SYNC_FLUSH")
    slave.connect(1)
    slave.take_sent()
    slave.held = []
    fill(talk)
    slave.receive(log_frame(0, log_of(talk)))
    assert slave.core.store.end_offset == talk.broker.store.end_offset
    assert slave.take_sent() == b""
    held, slave.held = slave.held, None
    for work in held:
        slave.finish(work)
    slave.run_effects()
    assert slave.take_our_reports()[-1] == Report(talk.broker.store.end_offset, 0, 0)


def test_a_stamp_is_returned_and_promises_once(ours: Slave) -> None:
    promised = list[int]()
    ours.core.following.promise = promised.append
    ours.receive(FRAME.pack(STAMP, 77, 0))
    ours.receive(b"")
    assert ours.take_our_reports() == [Report(0, 0, 77)]
    assert promised == [ours.instant.steady]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (FRAME.pack(9, 0, 0), "it is no master of Halfmoon"),
        (FRAME.pack(STATE, 0, 3) + b"abc", "a state is too short"),
        (state_frame(2) + state_frame(2, at=10), "state 2 came after 2"),
        (state_frame(2) + state_frame(1), "state 1 came after 2"),
        (state_frame(-1), "state -1 came after 0"),
        (state_frame(1, value=b"[1]"), "cannot be saved"),
        (state_frame(1, value=b"x" * 2000, at=10), "2118 bytes wait"),
    ],
)
def test_what_no_master_of_ours_sends_ends_the_connection_and_is_logged(
    ours: Slave, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, data: bytes, why: str
) -> None:
    monkeypatch.setattr(following, "STATES_BYTES_MAX", 1000)
    ours.receive(data)
    assert why in ours.reason
    assert [why in record.message for record in caplog.records] == [True]
    assert not ours.core.following.is_connected
