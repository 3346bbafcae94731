"""What a broker keeps beside its log reaches a slave: each row in its order, and of a table that changes often the newest.

So a delayed message is delivered once, whoever delivers it.
"""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.broker.copies import states
from halfmoon.broker.copies.states import States
from halfmoon.broker.tables import Tables
from halfmoon.store.journal import Journal, Kind, Row
from halfmoon.store.legacy import read_journal
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.copying import FILE, State, decode_state
from tests.broker.copies.slave import Port
from tests.broker.copies.test_following import FILE_BYTES, Slave
from tests.broker.half import stored
from tests.broker.talk import Talk


class Beside:
    """Tables and a journal, and a log that ends at ``end``."""

    def __init__(self) -> None:
        disk = SimDisk(Random(1))
        self.end, self.values, self.changes = 0, {"config/x.json": b"x0", "config/y.json": b"y0"}, 0
        self.tables, self.journal = Tables(disk), self.opened(disk)
        self.states = States(lambda: self.end, self.tables, self.journal)
        for path in self.values:
            self.tables.add(path, lambda path=path: self.values[path])  # type: ignore[misc]
        self.states.on_change = self.changed

    def opened(self, disk: SimDisk) -> Journal:
        journal = read_journal(disk)
        journal.begin(again=False)
        return journal

    def changed(self) -> None:
        self.changes += 1

    def save(self, path: str, value: bytes) -> None:
        """Change a table."""
        self.values[path] = value
        self.states.table_changed(path)

    def row(self, value: bytes, kind: Kind = Kind.DELAYS) -> None:
        """Write a row of the journal."""
        self.journal.write(Row(kind, b"", value))

    def since(self, number: int, offset: int = 0) -> list[tuple[int, State]]:
        """Return what a slave gets that has everything up to a number, and the log up to an offset; with where each counts from."""
        self.states.look()
        return [(change.at, decode_state(change.data)) for change in self.states.since(number, offset)]


@pytest.fixture
def beside() -> Beside:
    return Beside()


def test_a_new_slave_gets_every_table_and_row(beside: Beside) -> None:
    beside.row(b"r0")
    found = [state for _, state in beside.since(0)]
    assert {(state.kind, state.name, state.value) for state in found} >= {
        (FILE, b"config/x.json", b"x0"), (FILE, b"config/y.json", b"y0"), (Kind.DELAYS, b"", b"r0"),
    }  # fmt: skip
    assert [state.number for state in found] == sorted(state.number for state in found)
    assert found[-1].number == beside.states.count


def test_a_slave_that_has_all_gets_nothing(beside: Beside) -> None:
    beside.since(0)
    assert beside.since(beside.states.count) == []


def test_of_a_table_that_changed_again_the_newest_is_sent_once(beside: Beside) -> None:
    beside.since(0)
    number = beside.states.count
    beside.save("config/x.json", b"x1")
    beside.save("config/y.json", b"y1")
    beside.save("config/x.json", b"x2")
    assert [state[1:] for _, state in beside.since(number)] == [
        (FILE, b"config/y.json", b"y1"), (FILE, b"config/x.json", b"x2"),
    ]  # fmt: skip
    assert beside.states.count == number + 3


def test_rows_are_sent_one_by_one_each_with_where_the_log_ended_when_it_was_written(beside: Beside) -> None:
    beside.since(0)
    number = beside.states.count
    for end in (100, 200):
        beside.end = end
        beside.row(b"%d" % end)
        beside.save("config/x.json", b"x%d" % end)
    assert [(at, state.value) for at, state in beside.since(number)] == [(100, b"100"), (200, b"200"), (200, b"x200")]


def test_of_the_rows_that_count_where_the_log_of_the_slave_ends_it_gets_the_newest(beside: Beside) -> None:
    beside.since(0)
    number = beside.states.count
    for end in (100, 200, 300):
        beside.end = end
        beside.row(b"%d" % end)
    assert [at for at, _ in beside.since(number, 99)] == [100, 200, 300]
    assert [at for at, _ in beside.since(number, 250)] == [200, 300]
    assert [at for at, _ in beside.since(number, 300)] == [300]


def test_of_more_rows_than_are_remembered_the_newest_are_sent(beside: Beside) -> None:
    beside.since(0)
    number = beside.states.count
    for value in range(1, states.ROWS_MAX + 3):
        beside.end = value
        beside.row(b"%d" % value)
    assert [at for at, _ in beside.since(number)] == list(range(3, states.ROWS_MAX + 3))


def test_rows_of_other_kinds_stay_here(beside: Beside) -> None:
    beside.since(0)
    changes = beside.changes
    beside.row(b"c", Kind.CHECKPOINT)
    assert beside.changes == changes
    beside.row(b"d")
    assert beside.changes == changes + 1


def test_a_saved_table_counts_as_changed(beside: Beside) -> None:
    changed = beside.tables.add("config/z.json", lambda: b"z")
    beside.since(0)
    number = beside.states.count
    changed()
    beside.tables.hurry()
    for work in beside.tables.save_changed():
        work.run()
    beside.since(number)
    assert [state.name for _, state in beside.since(number)] == [b"config/z.json"]


def test_a_table_that_changed_and_is_not_saved_yet_is_seen_by_a_look(beside: Beside) -> None:
    changed = beside.tables.add("config/z.json", lambda: b"z", patient=True)
    beside.since(0)
    number = beside.states.count
    changed()
    assert [state.name for _, state in beside.since(number)] == [b"config/z.json"]
    assert beside.since(number + 1) == []


def test_a_table_without_content_has_no_value(beside: Beside) -> None:
    beside.values["config/x.json"] = b"\n"
    assert [state.value for _, state in beside.since(0)] == [None, b"y0"]


class Successor(Talk):
    """A broker that starts on the directory of a slave, at a time."""

    def __init__(self, disk: SimDisk, now: int) -> None:
        self._begins = now
        super().__init__("slave", disk=disk, store={"commit_log_file_bytes": FILE_BYTES})

    def open(self) -> None:
        self.now = self._begins
        super().open()


def history(seed: int) -> None:
    """Let delayed messages be copied and delivered; kill master and slave in the middle; raise AssertionError unless a broker on
    the slave's directory has delivered each of them once."""
    random, sent = Random(seed), dict[bytes, int]()
    master = Talk("store", disk=SimDisk(random), store={"commit_log_file_bytes": FILE_BYTES})
    port, slave, peer = Port(master), Slave(SimDisk(random), ours=True, file_bytes=FILE_BYTES), 0
    for _ in range(random.randint(10, 60)):
        step = random.choice(("send", "send", "wait", "wait", "copy", "copy", "copy", "break"))
        if step == "send":
            for _ in range(random.randint(1, 4)):
                delay = random.choice(("DELAY\x011", "DELAY\x012", f"TIMER_DELAY_MS\x01{random.randint(100, 6000)}"))
                body = b"%d" % len(sent)
                assert master.send("T", body, properties=f"{delay}\x02UNIQ_KEY\x01{len(sent)}\x02").code == 0
                sent[body] = master.broker.store.end_offset
        elif step == "wait":
            master.wait(random.randint(0, 2000))
        elif not slave.core.following.is_connected:
            peer += 1
            slave.connect(peer)
            port.connect(peer)
        elif step == "break":
            port.core.lost(peer, master.instant)
            slave.core.lost(peer, slave.instant)
        else:
            port.say(peer, slave.take_sent())
            slave.receive(port.take(peer, random.choice((None, random.randint(0, 3000)))))
        assert not slave.reason
    end = slave.core.store.end_offset
    slave.disk.crash(power=False)
    successor = Successor(slave.disk, master.now)
    successor.wait(20_000)
    delivered = sorted(message.body for message in stored(successor, "T"))
    assert delivered == sorted(body for body, behind in sent.items() if behind <= end)


def histories(count: int) -> None:
    for seed in range(count):
        history(seed)


def test_a_delayed_message_is_delivered_once_when_its_master_and_the_slave_are_killed() -> None:
    histories(100)


def test_rows_that_are_left_out_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = States.since
    monkeypatch.setattr(States, "since", lambda self, number, offset: real(self, number, 2**62))
    with pytest.raises(AssertionError):
        histories(100)
