"""The checkpoint: a row of the journal, the original's part beside it with its copies, and what is left after any stop."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from halfmoon.store.checkpoint import Checkpoint, CheckpointFile, read_last_run
from halfmoon.store.legacy import read_journal
from halfmoon.testing.disk import SimDisk, Stopped

SOME = Checkpoint(5000, 4000, 3000, 100, 200, 150, 7, 50)


def opened(disk: SimDisk) -> CheckpointFile:
    """The checkpoint as a start finds it, ready to be written."""
    journal = read_journal(disk)
    file = CheckpointFile(disk, journal)
    file.read()
    journal.begin(again=True)
    return file


def test_a_missing_checkpoint_says_nothing():
    file = opened(SimDisk(Random(1)))
    assert file.read() == Checkpoint()
    assert not file.ours


def test_what_is_written_is_read_and_the_first_24_bytes_are_the_original_ones():
    disk = SimDisk(Random(1))
    opened(disk).write(SOME)
    data = disk.read("checkpoint")
    assert len(data) == 4096
    assert [int.from_bytes(data[at : at + 8], "big") for at in (0, 8, 16)] == [5000, 4000, 3000]
    file = opened(disk)
    assert (file.read(), file.ours) == (SOME, True)
    assert SOME.usable_ms == 1000


def test_a_run_of_another_broker_makes_it_void_but_its_times_count():
    disk = SimDisk(Random(1))
    opened(disk).write(SOME)
    disk.open("checkpoint").write(0, (9999).to_bytes(8, "big"))
    file = opened(disk)
    assert file.read() == Checkpoint(9999, 4000, 3000)
    assert not file.ours
    file.write(SOME)
    file = opened(disk)
    assert (file.read(), file.ours) == (SOME, True)


def test_a_checkpoint_file_that_is_lost_or_zeroed_makes_the_row_void():
    disk = SimDisk(Random(1))
    opened(disk).write(SOME)
    disk.overwrite("checkpoint", bytes(4096))
    file = opened(disk)
    assert (file.read(), file.ours) == (Checkpoint(), False)
    disk.remove("checkpoint")
    file = opened(disk)
    assert (file.read(), file.ours) == (Checkpoint(), False)


def test_the_end_of_the_log_is_known_after_a_kill_at_any_write_and_after_no_other_end():
    for seed in range(40):
        disk = SimDisk(Random(seed))
        disk.save("abort", disk.boot_id().encode())
        file = opened(disk)
        file.write(SOME)
        for end in range(100, 200, 7):
            file.note_end(end)
        disk.stop_after_writes = seed % 2
        with suppress(Stopped):
            file.note_end(200)
            file.note_end(300)
        disk.crash(power=False)
        assert read_last_run(disk, opened(disk)).noted_end in ((198, 200) if seed % 2 == 0 else (200, 300))
        disk.machine_boots += 1
        assert read_last_run(disk, opened(disk)).noted_end is None
        disk.remove("abort")
        assert read_last_run(disk, opened(disk)).noted_end is None


def test_any_stop_leaves_a_checkpoint_that_was_written_and_counts():
    """Two stops in a row, each in the middle of any write or behind a loss of power, and one that is whole."""
    for seed in range(400):
        random = Random(seed)
        disk = SimDisk(random, write_back=0.2)
        file = opened(disk)
        file.write(SOME)
        file.sync(file=True)
        disk.sync_directory("")
        durable = written = 100
        for step in range(3):
            disk.stop_after_writes = random.randrange(7)
            with suppress(Stopped):
                for _ in range(random.randrange(3)):
                    written += 1
                    file.write(SOME._replace(durable_offset=written, log_ms=5000 + written, queue_ms=70_000 * written))
                    if random.random() < 0.3:
                        file.sync()
                        durable = written
            disk.crash(power=random.random() < 0.5)
            while True:
                file = opened(disk)
                found = file.read()
                assert file.ours, (seed, step)
                assert durable <= found.durable_offset <= written, (seed, step)
                disk.stop_after_writes = random.choice((None, 0, 1, 2, 3))
                try:
                    file.write(found)
                    file.sync(file=random.random() < 0.5)
                    break
                except Stopped:
                    disk.crash(power=random.random() < 0.5)
            disk.stop_after_writes = None
            durable = max(durable, found.durable_offset)
