"""The checkpoint file: two slots in turn, the original's part beside them, and what is left after any stop."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from halfmoon.store.checkpoint import Checkpoint, CheckpointFile, read_last_run
from halfmoon.testing.disk import SimDisk, Stopped

SOME = Checkpoint(5000, 4000, 3000, 100, 200, 150, 7, 50)


def test_a_missing_checkpoint_says_nothing():
    file = CheckpointFile(SimDisk(Random(1)))
    assert file.read() == Checkpoint()
    assert not file.ours


def test_what_is_written_is_read_and_the_first_24_bytes_are_the_original_ones():
    disk = SimDisk(Random(1))
    CheckpointFile(disk).write(SOME)
    data = disk.read("checkpoint")
    assert len(data) == 4096
    assert [int.from_bytes(data[at : at + 8], "big") for at in (0, 8, 16)] == [5000, 4000, 3000]
    file = CheckpointFile(disk)
    assert (file.read(), file.ours) == (SOME, True)
    assert SOME.usable_ms == 1000


def test_the_newest_of_the_two_slots_counts():
    disk = SimDisk(Random(1))
    file = CheckpointFile(disk)
    for offset in range(1, 6):
        file.write(SOME._replace(durable_offset=offset))
        assert CheckpointFile(disk).read().durable_offset == offset
    file.write(SOME._replace(clean=True))
    assert CheckpointFile(disk).read().clean


def test_a_run_of_another_broker_makes_it_void_but_its_times_count():
    disk = SimDisk(Random(1))
    CheckpointFile(disk).write(SOME)
    disk.open("checkpoint").write(0, (9999).to_bytes(8, "big"))
    file = CheckpointFile(disk)
    assert file.read() == Checkpoint(9999, 4000, 3000)
    assert not file.ours


def test_damage_of_the_newer_slot_leaves_the_older_one_with_the_same_times():
    disk = SimDisk(Random(1))
    file = CheckpointFile(disk)
    file.write(SOME)
    file.write(SOME._replace(durable_offset=101))
    disk.open("checkpoint").write(1024 + 30, b"\xff")
    assert CheckpointFile(disk).read().durable_offset == 100


def test_the_end_of_the_log_is_known_after_a_kill_at_any_write_and_after_no_other_end():
    for seed in range(40):
        disk = SimDisk(Random(seed))
        disk.save("abort", disk.boot_id().encode())
        file = CheckpointFile(disk)
        file.write(SOME)
        for end in range(100, 200, 7):
            file.note_end(end)
        disk.stop_after_writes = seed % 2
        with suppress(Stopped):
            file.note_end(200)
            file.note_end(300)
        disk.crash(power=False)
        assert read_last_run(disk, CheckpointFile(disk)).noted_end in ((198, 200) if seed % 2 == 0 else (200, 300))
        disk.machine_boots += 1
        assert read_last_run(disk, CheckpointFile(disk)).noted_end is None
        disk.remove("abort")
        assert read_last_run(disk, CheckpointFile(disk)).noted_end is None


def test_a_stop_at_any_write_leaves_a_valid_checkpoint():
    for seed in range(40):
        disk = SimDisk(Random(seed))
        file = CheckpointFile(disk)
        file.write(SOME)
        disk.stop_after_writes = seed % 2
        with suppress(Stopped):
            file.write(SOME._replace(durable_offset=101, log_ms=6000, queue_ms=70_000))
        disk.crash(power=False)
        again = CheckpointFile(disk)
        found = again.read()
        assert again.ours
        assert found.durable_offset in (100, 101)
        again.write(found._replace(durable_offset=102))
        assert CheckpointFile(disk).read().durable_offset == 102
