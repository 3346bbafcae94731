"""Directories of the version before the journal: their rows are read, a broker goes on with them, and their files go.

``previous_version`` holds two directories that this version made, with files of a few KB: 60 messages with keys in three queues
of BenchmarkTest, one for each of the delay levels 1, 2 and 5, five half messages of which one was committed, three seconds, and the
topic Gone made and deleted. One was stopped; the other was killed after two messages more, when queue 2 was found damaged.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from random import Random

import pytest

from halfmoon.broker.names import SCHEDULE_TOPIC
from halfmoon.store.check.fsck import fsck
from halfmoon.store.checkpoint import CheckpointFile, read_last_run
from halfmoon.store.journal import Journal
from halfmoon.store.layout import HALF_TOPIC, OP_TOPIC
from halfmoon.store.legacy import read_journal
from halfmoon.store.queues.inventory import DISTRUSTED, Inventory, Row
from halfmoon.store.queues.reservations import Reservations
from halfmoon.store.settings import StoreSettings
from halfmoon.store.timer.progress import read_progress
from halfmoon.store.transactions.watermark import Watermark, read_watermark
from halfmoon.testing.disk import SimDisk
from tests.broker.talk import START_MS, Talk
from tests.store.driving import read_all

SMALL = {"commit_log_file_bytes": 64 * 1024, "transaction_file_records": 100, "hash_slots": 64, "index_entries_max": 100}
DIRECTORIES = Path(__file__).parent / "previous_version"
KEYS = {("BenchmarkTest", number) for number in range(4)} | {(SCHEDULE_TOPIC, number) for number in (0, 1, 4)}
ENDS = {0: 22, 1: 20, 2: 20, 3: 1}


def disk_of(stop: str) -> SimDisk:
    disk = SimDisk(Random(1))
    with tarfile.open(DIRECTORIES / f"{stop}.tar.xz") as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            assert file is not None
            disk.create(member.name, member.size)
            disk.overwrite(member.name, file.read())
    for path in disk.paths():
        disk.sync_directory(path.rpartition("/")[0])
    return disk


def sound(disk: SimDisk) -> bool:
    return not any(problem.certain for problem in fsck(disk, StoreSettings(**SMALL)))


def old_files(disk: SimDisk) -> list[str]:
    kept = ("commitlog/", "consumequeue/", "index/", "transaction/statetable", "transaction/redolog", "journal/")
    return [
        path for path in disk.paths() if not path.startswith(kept) and not path.endswith((".json", ".bak", "checkpoint", "abort"))
    ]


@pytest.mark.parametrize("stop", ["stopped", "killed"])
def test_every_row_of_the_previous_version_is_read(stop: str) -> None:
    disk = disk_of(stop)
    journal, killed = read_journal(disk), stop == "killed"
    last_run = read_last_run(disk, CheckpointFile(disk, journal))
    assert (last_run.ours, last_run.clean, last_run.lost) == (True, not killed, False)
    assert last_run.durable_offset == last_run.written_offset == (13801 if killed else 13971)
    assert (last_run.checkpoint.index_entries, last_run.noted_end) == (73, 14141 if killed else None)
    reservations, inventory = Reservations(journal), Inventory(journal)
    keys = KEYS | {(HALF_TOPIC, 0), (OP_TOPIC, 0)}
    assert {key: (reservations.reserved(*key), reservations.floor(*key)) for key in reservations.queues()} == dict.fromkeys(
        keys, (4097, 0)
    )
    assert inventory.there
    assert set(inventory.queues) == keys
    assert inventory.queues["BenchmarkTest", 1] == Row(180, 0, 0, 180, 20, 20)
    assert inventory.index == {"20231114221320016": Row(first=0)}
    assert inventory.rebuilt == ({("BenchmarkTest", 2): Row(durable=DISTRUSTED)} if killed else {})
    assert inventory.deleted == ({"Gone": Row(13801)} if killed else {})
    assert inventory.sizes == Row(65536, 2000, 2296)
    end = 13801 if killed else 13971
    assert read_watermark(journal) == Watermark(end, 5, 6, 1, 0, 0, end, clean=not killed, boot="boot-0")
    progress = read_progress(journal)
    assert progress is not None
    assert (progress.position, progress.levels[1], progress.levels[2], progress.begun) == (13801, 1, 0, ())
    assert not Journal(disk).there, "nothing is changed by reading"


@pytest.mark.parametrize("stop", ["stopped", "killed"])
@pytest.mark.parametrize("crash", [None, "kill", "power"])
def test_a_broker_goes_on_with_such_a_directory_and_the_old_files_go(stop: str, crash: str | None) -> None:
    disk, killed = disk_of(stop), stop == "killed"
    assert sound(disk)
    talk = Talk(None, disk=disk, store=SMALL)
    if crash is not None:
        disk.crash(power=crash == "power")
        talk.open()
    store = talk.broker.store
    assert (store.recovered.clean, store.recovered.lost) == ((not killed, False) if crash is None else (False, crash == "power"))
    assert {queue_id: len(read_all(store, "BenchmarkTest", queue_id)) for queue_id in ENDS} == {**ENDS, 1: ENDS[1] + killed}
    assert not store.queue_ids("Gone")
    assert talk.broker.context.disk.exists("journal")
    assert old_files(disk) == ["config/spare", "lock"]
    talk.now = START_MS + 5_000
    talk.wait(0)
    assert [body for body, _ in read_all(store, "BenchmarkTest", 0).values()][-1] == b"late 2"
    talk.now += 60_000
    talk.wait(0)
    bodies = [body for body, _ in read_all(store, "BenchmarkTest", 0).values()]
    assert [body for body in bodies if body.startswith(b"late")] == [b"late 1", b"late 2", b"late 5"]
    talk.restart()
    assert sound(disk)
    assert talk.broker.store.recovered.clean


def test_where_there_is_a_journal_old_files_count_for_nothing() -> None:
    disk, other = disk_of("stopped"), disk_of("stopped")
    talk = Talk(None, disk=disk, store=SMALL)
    talk.send("BenchmarkTest", b"new")
    talk.stop()
    talk.broker.close(talk.instant)
    old = other.read("config/queueReserve")
    assert old is not None
    disk.create("config/queueReserve", len(old))
    disk.overwrite("config/queueReserve", bytes(len(old)))
    assert Reservations(read_journal(disk)).reserved("BenchmarkTest", 0) == 4097
    talk.open()
    assert old_files(disk) == ["config/spare", "lock"]
