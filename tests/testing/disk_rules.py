"""What every disk must do, run on the real one and on the simulated one alike."""

from __future__ import annotations

import pytest

from halfmoon.errors import StoreLocked
from halfmoon.ports import Disk


class DiskRules:
    """Test classes inherit this and give a fixture ``disk``."""

    def test_a_new_file_is_zeros_of_its_size(self, disk: Disk):
        file = disk.create("a/b/c", 5000)
        assert file.size == 5000
        assert bytes(file.view(0, 5000)) == bytes(5000)

    def test_what_is_written_is_seen_through_views_and_after_opening_again(self, disk: Disk):
        file = disk.create("log", 8192)
        view = file.view(4090, 10)
        file.write(4092, b"abcdef")
        assert bytes(view) == b"\0\0abcdef\0\0"
        assert bytes(disk.open("log").view(4092, 6)) == b"abcdef"
        assert disk.file_size("log") == 8192

    def test_large_and_small_writes_mix(self, disk: Disk):
        file = disk.create("log", 1 << 20)
        file.write(0, b"x" * 100_000)
        file.write(99_999, b"yz")
        file.write(100_001, memoryview(b"w" * 50_000))
        assert bytes(file.view(99_998, 5)) == b"xyzww"

    def test_what_was_synced_is_not_missing_on_the_device(self, disk: Disk):
        file = disk.create("log", 6_000_000)
        file.write(0, b"x" * 3_000_000)
        file.write(5_999_980, b"y" * 20)
        file.sync()
        for span in ((0, 6_000_000), (5_999_990, 10), (1_048_575, 2), (4096, 1)):
            assert file.missing(*span) in ([], [span])  # all of it where the file system cannot tell

    def test_numbers_are_written_each_at_its_place(self, disk: Disk):
        file = disk.create("index", 8192)
        file.write_numbers([4, 4096, 8188], [7, -1, 2**31 - 1])
        file.write_numbers([], [])
        assert bytes(file.view(0, 12)) == bytes(4) + (7).to_bytes(4, "big") + bytes(4)
        assert (bytes(file.view(4096, 4)).hex(), bytes(file.view(8188, 4)).hex()) == ("ffffffff", "7fffffff")
        with pytest.raises(IndexError):
            file.write_numbers([8192], [1])

    def test_a_write_beyond_the_end_is_refused_and_changes_nothing(self, disk: Disk):
        file = disk.create("log", 100)
        with pytest.raises(IndexError):
            file.write(96, b"12345")
        assert bytes(file.view(90, 10)) == bytes(10)

    def test_a_view_is_shorter_at_the_end(self, disk: Disk):
        assert len(disk.create("log", 100).view(90, 50)) == 10

    def test_views_outlive_the_removal_of_their_file(self, disk: Disk):
        file = disk.create("log", 4096)
        file.write(0, b"kept")
        view = file.view(0, 4)
        file.close()
        disk.remove("log")
        assert not disk.exists("log")
        assert bytes(view) == b"kept"

    def test_creating_over_a_file_starts_with_zeros(self, disk: Disk):
        disk.create("log", 10).write(0, b"old")
        assert bytes(disk.create("log", 20).view(0, 20)) == bytes(20)

    def test_a_missing_file_is_not_found_but_may_be_removed(self, disk: Disk):
        with pytest.raises(FileNotFoundError):
            disk.open("nothing")
        disk.remove("nothing")
        assert disk.read("nothing") is None
        assert disk.list("nothing") == []

    def test_names_are_listed_sorted(self, disk: Disk):
        for path in ("q/t/1/b", "q/t/1/a", "q/t/0/a", "q/s/0/a"):
            disk.create(path, 1)
        assert disk.list("q") == ["s", "t"]
        assert disk.list("q/t/1") == ["a", "b"]
        assert disk.exists("q/t")

    def test_a_saved_file_replaces_the_old_one_and_keeps_it_beside(self, disk: Disk):
        disk.save("config/topics.json", b"1")
        disk.save("config/topics.json", b"22")
        assert disk.read("config/topics.json") == b"22"
        assert disk.read("config/topics.json.bak") == b"1"
        assert disk.list("config") == ["topics.json", "topics.json.bak"]

    def test_a_saved_file_keeps_no_copy_when_told_so(self, disk: Disk):
        disk.save("abort", b"1", keep_previous=False)
        disk.save("abort", b"2", keep_previous=False)
        assert not disk.exists("abort.bak")

    def test_a_lock_keeps_others_out_until_released(self, disk: Disk):
        lock = disk.lock("lock")
        with pytest.raises(StoreLocked):
            disk.lock("lock")
        lock.release()
        disk.lock("lock").release()
        assert disk.read("lock") == b"lock"

    def test_syncs_of_files_and_directories_work(self, disk: Disk):
        file = disk.create("d/e/log", 4096)
        file.write(0, b"x")
        file.sync()
        disk.sync_directory("d/e")
        disk.sync_directory("")

    def test_a_file_that_was_given_back_and_removed_needs_no_sync(self, disk: Disk):
        file = disk.create("log", 4096)
        file.write(0, b"x")
        file.close()
        disk.remove("log")
        file.sync()

    def test_a_file_that_somebody_else_took_away_cannot_be_synced(self, disk: Disk):
        file = disk.create("log", 4096)
        file.write(0, b"x")
        disk.remove("log")
        with pytest.raises(FileNotFoundError, match="log"):
            file.sync()

    def test_usage_is_plausible(self, disk: Disk):
        usage = disk.usage()
        assert 0 <= usage.free_bytes <= usage.total_bytes
        assert usage.total_bytes > 0

    def test_the_boot_id_stays_the_same(self, disk: Disk):
        assert disk.boot_id() == disk.boot_id()
