"""Directories that Apache's brokers wrote: the transaction index made from them says what the producer decided."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from halfmoon import Admin, LocalTransactionState, Message, StoredMessage, TransactionProducer
from halfmoon.instant import instant
from halfmoon.model import java_hash
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store import Store, StoreSettings
from halfmoon.store.check.fsck import fsck
from halfmoon.store.layout import HALF_TOPIC
from halfmoon.store.transactions.index import State, TransactionIndex
from tests.interop.apache import Cluster

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
SAID = [COMMIT, ROLLBACK, UNKNOWN] * 10
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
GROUP = "tx-index"


class Teller:
    """A listener that says what the number in the body asks for, also where a slow machine has a broker ask before it is told."""

    def execute(self, message: Message, arg: object) -> LocalTransactionState:
        return SAID[int(message.body)]

    def check(self, message: StoredMessage) -> LocalTransactionState:
        return SAID[int(message.body)]


def directory_of(version: str, home: Path, settings: Mapping[str, object], wait_s: float, *, kill: bool) -> Path:
    """Let a broker take thirty transactions, and return its directory."""
    cluster = Cluster(version, home, settings=settings).start()
    try:
        with Admin(nameserver=cluster.nameserver) as admin:
            admin.create_topic("Orders", queue_count=2)
        with TransactionProducer(group=GROUP, nameserver=cluster.nameserver, listener=Teller()) as producer:
            for number in range(len(SAID)):
                producer.send_in_transaction(Message("Orders", b"%d" % number))
            time.sleep(wait_s)
    finally:
        if kill:
            cluster.kill()
        else:
            cluster.stop()
    return cluster.stores[0]


def opened(directory: Path, settled_below: int) -> tuple[Store, TransactionIndex]:
    disk, now = RealDisk(directory), instant(int(time.time() * 1000))
    store = Store.open(disk, StoreSettings(), HOST, now)
    return store, TransactionIndex.open(disk, store, StoreSettings(), settled_below=settled_below, now=now.steady)


def close(store: Store, index: TransactionIndex) -> None:
    now = instant(int(time.time() * 1000))
    store.stop(now)
    index.stop(now)
    for work in [*store.work(), *index.work()]:
        work.done(work.run(), now)
    index.close(now)
    store.close(now)


@pytest.mark.interop
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_the_index_of_a_directory_says_what_the_producer_decided(version: str, kill: bool, tmp_path: Path) -> None:
    directory = directory_of(version, tmp_path, {"transactionOpBatchInterval": 1000}, 5, kill=kill)
    store, index = opened(directory, 0)
    states = {COMMIT: State.COMMITTED, ROLLBACK: State.ROLLED_BACK, UNKNOWN: State.PREPARED}
    assert [half.state for at in range(index.end) if (half := index.half(at))] == [states[said] for said in SAID]
    assert (dict(index.pending_by_group), list(index.unfinished), index.ignored) == ({java_hash(GROUP): 10}, [], 0)
    for half in index.pending(0, 100)[0]:
        record = store.record(half.physical_offset, half.size)
        assert record is not None
        assert SAID[int(bytes(record[88 : 88 + int.from_bytes(record[84:88], "big")]))] is UNKNOWN
    close(store, index)
    assert [finding for finding in fsck(RealDisk(directory)) if finding.place.startswith("transaction")] == []


@pytest.mark.interop
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_what_a_broker_copied_to_ask_about_it_is_pending_once(version: str, tmp_path: Path) -> None:
    quick = {
        "transactionTimeOut": 500, "transactionCheckInterval": 1000, "transactionOpBatchInterval": 100, "transactionCheckMax": 1000,
    }  # fmt: skip
    directory = directory_of(version, tmp_path, quick, 6, kill=False)
    text = (directory / "config" / "consumerOffset.json").read_text()
    found = re.search(rf'"{HALF_TOPIC}@CID_RMQ_SYS_TRANS"\s*:\s*{{\s*0\s*:\s*(\d+)', text)
    assert found is not None, text
    store, index = opened(directory, int(found.group(1)))
    bodies: Counter[int] = Counter()
    for half in index.pending(0, 100)[0]:
        record = store.record(half.physical_offset, half.size)
        assert record is not None
        bodies[int(bytes(record[88 : 88 + int.from_bytes(record[84:88], "big")]))] += 1
    assert index.end > len(SAID), "nobody was asked, so nothing was copied"
    assert bodies == {number: 1 for number, said in enumerate(SAID) if said is UNKNOWN}
    close(store, index)
