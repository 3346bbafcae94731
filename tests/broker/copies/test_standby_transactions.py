"""A slave keeps the index of open transactions, so that a broker that starts on its directory knows them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import pytest

from halfmoon.broker.names import HALF_TOPIC, TRANSACTIONS_GROUP
from halfmoon.errors import StoreError
from halfmoon.store import Store
from halfmoon.store.check.fsck import fsck
from halfmoon.store.legacy import read_journal
from halfmoon.store.transactions import recovery
from halfmoon.store.transactions.files import TransactionFiles
from halfmoon.store.transactions.index import Half, State, TransactionIndex
from halfmoon.store.transactions.state_table import StateTable
from halfmoon.store.transactions.watermark import read_watermark
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import ConsumerOffsetTable, to_json
from halfmoon.wire.ids import offset_msg_id, pack_host
from tests.broker.copies.slave import log_of
from tests.broker.copies.test_following import FILE_BYTES, Slave
from tests.broker.copies.test_standby import Standing, of_apache
from tests.broker.half import CHECKS, COMMIT, GROUP, ROLLBACK, checks, end, prepare, produce
from tests.broker.talk import Talk
from tests.store.driving import edit_journal
from tests.store.transacting import NO_WATERMARK

STORE = {"commit_log_file_bytes": FILE_BYTES}


@pytest.fixture
def talk() -> Talk:
    """A master with sixty half messages, of which a third each is committed, rolled back and left."""
    talk = Talk("store", disk=SimDisk(Random(3)), store=STORE)
    for number in range(60):
        sent = prepare(talk, f"u{number}")
        if number % 3 < 2:
            end(talk, sent, (COMMIT, ROLLBACK)[number % 3])
    return talk


def follow(talk: Any, slave: Slave) -> None:
    """Let a slave copy what its master has more."""
    copying = slave.core.store.copying()
    copying.take(log_of(talk, copying.received))
    slave.run_effects()


def halves(index: TransactionIndex | None) -> list[Half]:
    assert index is not None
    return [half for at in range(index.first, index.end) if (half := index.half(at)) is not None]


def leave(slave: Slave, *, kill: bool) -> None:
    """Stop it cleanly, or kill it."""
    if kill:
        slave.disk.crash(power=False)
        return
    slave.core.stop(slave.instant)
    slave.run_effects()
    slave.core.close(slave.instant)


@pytest.mark.parametrize("kill", [False, True])
def test_a_broker_that_starts_on_the_directory_knows_them_without_reading_the_log(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, kill: bool
) -> None:
    slave, read = Slave(SimDisk(Random(1))), list[int]()
    follow(talk, slave)
    if kill:
        slave.wait(10_000)
    leave(slave, kill=kill)
    saved = read_watermark(read_journal(slave.disk))
    assert saved is not None
    assert (saved.position, saved.clean) == (talk.broker.store.end_offset, not kill)
    real = recovery.transaction_records

    def counted(store: Store, start: int) -> Any:
        found = list(real(store, start))
        read.append(len(found))
        return found

    monkeypatch.setattr(recovery, "transaction_records", counted)
    assert [each for each in fsck(slave.disk, slave.settings) if each.what != "record"] == []
    index = Talk("promoted", disk=slave.disk, store=STORE).broker.transactions.index
    assert (read, index.rebuilt, index.pending_count) == ([0], None, 20)
    assert halves(index) == halves(talk.broker.transactions.index)


def test_a_slave_goes_on_with_the_index_of_the_master_that_it_was(talk: Talk) -> None:
    slave = Slave(SimDisk(Random(1)))
    follow(talk, slave)
    leave(slave, kill=False)
    promoted = Talk("promoted", disk=slave.disk, store=STORE)
    prepare(promoted, "more")
    promoted.disk.crash(power=False)
    slave.open()
    assert slave.core.transactions.index is not None
    assert (slave.core.transactions.index.rebuilt, slave.core.transactions.index.pending_count) == (None, 21)


def test_what_a_master_of_rocketmq_settled_is_asked_about_by_nobody(talk: Talk) -> None:
    standing = of_apache(Standing(talk))
    follow(talk, standing)
    standing.wait(5000)
    talk.broker.offsets.put(TRANSACTIONS_GROUP, HALF_TOPIC, 0, 30)
    assert standing.look() is None
    standing.wait(5000)
    leave(standing, kill=True)
    index = Talk("promoted", disk=standing.disk, store=STORE).broker.transactions.index
    assert (index.rebuilt, index.pending_count, index.lowest_pending()) == (None, 10, 32)


def test_the_first_start_on_the_copy_of_another_broker_takes_what_that_had_settled(talk: Talk) -> None:
    slave = Slave(SimDisk(Random(1)))
    follow(talk, slave)
    leave(slave, kill=False)
    edit_journal(slave.disk, NO_WATERMARK)
    offsets = ConsumerOffsetTable(offset_table={f"{HALF_TOPIC}@{TRANSACTIONS_GROUP}": {0: 30}})
    slave.disk.save("config/consumerOffset.json", to_json(offsets))
    slave.open()
    assert slave.core.transactions.index is not None
    assert (slave.core.transactions.index.pending_count, slave.core.transactions.index.lowest_pending()) == (10, 32)


def fail_entering(error: type[Exception]) -> Callable[[Slave, pytest.MonkeyPatch], None]:
    def plant(slave: Slave, patch: pytest.MonkeyPatch) -> None:
        def fail(*arguments: Any, **more: Any) -> None:
            raise error("planted")

        assert slave.core.transactions.index is not None
        patch.setattr(slave.core.transactions.index.files.table, "enter", fail)

    return plant


def fail_opening(slave: Slave, patch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **more: Any) -> None:
        raise OSError("planted")

    patch.setattr(StateTable, "cut", refuse)
    leave(slave, kill=True)
    slave.open()


def fail_saving(slave: Slave, patch: pytest.MonkeyPatch) -> None:
    def refuse(self: TransactionFiles) -> Any:
        def run() -> None:
            raise OSError("planted")

        return run

    patch.setattr(TransactionFiles, "take_sync", refuse)


FAILURES = {
    "disk error": fail_entering(OSError), "contradiction": fail_entering(StoreError), "mistake of ours": fail_entering(KeyError),
    "not opened": fail_opening, "not saved": fail_saving,
}  # fmt: skip
Failing = tuple[Slave, pytest.MonkeyPatch]


@pytest.fixture(params=FAILURES)
def failing(talk: Talk, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Failing]:
    """A slave whose index failed after 60 half messages, and that has copied others and decisions since; `undo` ends that."""
    slave = Slave(SimDisk(Random(1)))
    follow(talk, slave)
    slave.wait(10_000)
    before = [Place.of(half) for half in halves(talk.broker.transactions.index)]
    with pytest.MonkeyPatch.context() as patch:
        FAILURES[request.param](slave, patch)
        more = [prepare(talk, f"w{number}") for number in range(6)]
        follow(talk, slave)
        end(talk, before[2], COMMIT)
        end(talk, more[0], ROLLBACK)
        follow(talk, slave)
        slave.wait(9_000)
        assert slave.core.transactions.fault is not None
        assert slave.core.store.end_offset == talk.broker.store.end_offset, "the log is copied all the same"
        yield slave, patch


class Place(NamedTuple):
    """What a producer knows of a half message."""

    queue_offset: int
    msg_id: str

    @classmethod
    def of(cls, half: Half) -> Place:
        """Return that of one in the index."""
        return cls(half.index, offset_msg_id(pack_host("127.0.0.1:10911"), half.physical_offset))


@pytest.mark.parametrize("kill", [False, True])
def test_a_slave_whose_index_failed_takes_over_and_asks_about_what_is_open(talk: Talk, failing: Failing, kill: bool) -> None:
    slave, patch = failing
    patch.undo()
    leave(slave, kill=kill)
    promoted = Talk("promoted", disk=slave.disk, store=STORE, **CHECKS)
    assert halves(promoted.broker.transactions.index) == halves(talk.broker.transactions.index)
    produce(promoted, GROUP)
    promoted.wait(60_000)
    asked = {header.tran_state_table_offset for header, _ in checks(promoted)}
    assert asked == {half.index for half in halves(talk.broker.transactions.index) if half.state is State.PREPARED}
    assert len(asked) == 24


def test_an_index_that_failed_is_brought_up_to_the_log_while_the_slave_runs(
    talk: Talk, failing: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    slave, patch = failing
    assert "refused" not in caplog.text
    patch.undo()
    slave.wait(2_000)
    assert slave.core.transactions.fault is None
    assert "the transaction index has everything again that the log has" in caplog.text
    prepare(talk, "after")
    follow(talk, slave)
    assert halves(slave.core.transactions.index) == halves(talk.broker.transactions.index)
    slave.wait(10_000)
    leave(slave, kill=True)
    index = Talk("promoted", disk=slave.disk, store=STORE).broker.transactions.index
    assert (index.rebuilt, halves(index)) == (None, halves(talk.broker.transactions.index))


def test_what_a_master_of_rocketmq_settled_while_the_index_failed_is_asked_about_by_nobody(talk: Talk, failing: Failing) -> None:
    slave, patch = failing
    slave.core.transactions.settle_below(40)
    patch.undo()
    leave(slave, kill=True)
    index = Talk("promoted", disk=slave.disk, store=STORE).broker.transactions.index
    expected = [half.index for half in halves(talk.broker.transactions.index) if half.state is State.PREPARED and half.index >= 40]
    assert [half.index for half in halves(index) if half.state is State.PREPARED] == expected
