"""A slave keeps the index of open transactions, so that a broker that starts on its directory knows them at once."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from halfmoon.broker.names import HALF_TOPIC, TRANSACTIONS_GROUP
from halfmoon.store import Store
from halfmoon.store.check.fsck import fsck
from halfmoon.store.legacy import read_journal
from halfmoon.store.transactions import recovery
from halfmoon.store.transactions.index import Half, TransactionIndex
from halfmoon.store.transactions.watermark import read_watermark
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import ConsumerOffsetTable, to_json
from tests.broker.copies.slave import log_of
from tests.broker.copies.test_following import FILE_BYTES, Slave
from tests.broker.copies.test_standby import Standing, of_apache
from tests.broker.half import COMMIT, ROLLBACK, end, prepare
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
    assert slave.core.index is not None
    assert (slave.core.index.rebuilt, slave.core.index.pending_count) == (None, 21)


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
    assert slave.core.index is not None
    assert (slave.core.index.pending_count, slave.core.index.lowest_pending()) == (10, 32)


def test_a_slave_without_space_for_the_index_copies_the_log(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: Any, **more: Any) -> TransactionIndex:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(TransactionIndex, "open", refuse)
        slave = Slave(SimDisk(Random(1)))
    assert "the transaction index is not kept here" in caplog.text
    follow(talk, slave)
    slave.wait(5000)
    assert slave.core.store.end_offset == talk.broker.store.end_offset
    leave(slave, kill=False)
    index = Talk("promoted", disk=slave.disk, store=STORE).broker.transactions.index
    assert halves(index) == halves(talk.broker.transactions.index)
