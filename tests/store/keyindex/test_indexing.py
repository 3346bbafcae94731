"""Indexing by key: queries before and behind the index, slices in the background, and going on after stops and losses."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.errors import StoreNotWritable
from halfmoon.instant import instant
from halfmoon.store import Store
from halfmoon.store.check.fsck import fsck
from halfmoon.store.keyindex import indexing
from halfmoon.store.log.resync import next_record
from halfmoon.store.queues.reading import ReadResult, ReadStatus
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, carry_out, close, draft, facts_of, open_store, run, small

ALWAYS = (0, 2**62)


def bodies(records: list[memoryview]) -> list[bytes]:
    found = ReadResult(ReadStatus.FOUND, 0, 0, 0, records, len(records), 0)
    return [body for _, _, body in facts_of(found)]


def keyed(body: bytes, unique: str = "", keys: str = "") -> tuple:
    text = (f"UNIQ_KEY\x01{unique}\x02" if unique else "") + (f"KEYS\x01{keys}\x02" if keys else "")
    return draft(body, text.encode())


def some(store: Store, count: int = 10) -> None:
    for number in range(count):
        store.append("t", 0, [keyed(b"%d" % number, f"U{number}", f"even{number % 2} k{number}")], NOW + number * 1000)


def test_messages_are_found_by_each_of_their_keys_before_any_tick():
    store = open_store(SimDisk(Random(1)))
    some(store)
    assert bodies(store.query("t", "U3", 32, *ALWAYS).records) == [b"3"]
    assert bodies(store.query("t", "k4", 32, *ALWAYS).records) == [b"4"]
    assert bodies(store.query("t", "even1", 32, *ALWAYS).records) == [b"1", b"3", b"5", b"7", b"9"]
    assert store.query("other", "U3", 32, *ALWAYS).records == []
    found = store.query("t", "none", 32, *ALWAYS)
    assert (found.records, found.last_ms) == ([], NOW + 9000)


def test_the_newest_are_found_when_there_are_more_than_wanted():
    store = open_store(SimDisk(Random(1)))
    some(store)
    assert bodies(store.query("t", "even0", 2, *ALWAYS).records) == [b"6", b"8"]


def test_times_are_compared_to_the_millisecond():
    store = open_store(SimDisk(Random(1)))
    store.append("t", 0, [keyed(b"a", keys="k")], NOW)
    store.append("t", 0, [keyed(b"b", keys="k")], NOW + 1500)
    assert bodies(store.query("t", "k", 32, NOW + 1, NOW + 1500).records) == [b"b"]
    assert bodies(store.query("t", "k", 32, NOW + 1, NOW + 1499).records) == []
    assert bodies(store.query("t", "k", 32, NOW, NOW).records) == [b"a"]


def test_rollback_records_have_no_keys_and_prepared_ones_do():
    store = open_store(SimDisk(Random(1)))
    for bits in (4, 8, 12):
        body, properties, flag, _, *rest = keyed(b"%d" % bits, keys="k")
        store.append("t", 0, [(body, properties, flag, bits, *rest)], NOW)
    assert bodies(store.query("t", "k", 32, *ALWAYS).records) == [b"4", b"8"]


def test_in_sync_flush_a_query_sees_only_what_is_durable():
    store = open_store(SimDisk(Random(1)), flush_disk_type="SYNC_FLUSH")
    some(store, 1)
    assert store.query("t", "U0", 32, *ALWAYS).records == []
    store.flush(1, NOW)
    carry_out(store)
    assert bodies(store.query("t", "U0", 32, *ALWAYS).records) == [b"0"]


def test_ticks_index_in_the_background_until_nothing_is_left():
    store = open_store(SimDisk(Random(1)))
    some(store, 300)
    now = NOW
    for _ in range(50):
        now = max(now, store.due())
        store.tick(instant(now))
        carry_out(store, now)
    assert store._indexing.position == store.end_offset
    assert len(store._indexing.index.files) == 10


@pytest.mark.parametrize(
    "properties",
    [
        "UNIQ_KEY\x01A1\x02KEYS\x01B1 C1\x02", "UNIQ_KEY\x01A2\x02xKEYS\x01B2\x02", "UNIQ_KEY\x01\x02KEYS\x01B3\x02",
        "KEYS\x01B4\x02UNIQ_KEY\x01A4\x02", "NAME\x01UNIQ_KEY\x01A5\x02", "UNIQ_KEY\x01A6", "UNIQ_KEY\x01KEYS\x01A7\x02", "",
    ],
)  # fmt: skip
def test_what_is_indexed_is_what_a_rebuild_of_the_same_records_finds(properties: str):
    disk = SimDisk(Random(1))
    store = open_store(disk)
    for turn in range(20):  # of one length, so that what was remembered of one is tried on the next
        text = (properties, "UNIQ_KEY\x01" + "x" * (len(properties) - 10) + "\x02")[turn % 2]
        store.append("t", 0, [draft(b"body", text.encode())], NOW)
    now = NOW
    while store._indexing.position < store.end_offset:
        now = max(now, store.due())
        store.tick(instant(now))
        carry_out(store, now)
    close(store, now)

    assert list(fsck(disk, small())) == []


def test_runs_of_alike_records_are_indexed_as_a_rebuild_finds_them():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    for number in range(300):  # runs of 40, 1, 40, 1 …, over files of 4 KiB
        odd = number % 41 == 40
        store.append("t", 0, [keyed(b"odd" if odd else b"body", f"U{number:04}", "k1 k2" if odd else "")], NOW + number)
    now = NOW
    while store._indexing.position < store.end_offset:
        now = max(now, store.due())
        store.tick(instant(now))
        carry_out(store, now)
    assert bodies(store.query("t", "U0123", 32, *ALWAYS).records) == [b"body"]
    close(store, now)

    assert list(fsck(disk, small())) == []


def test_under_load_a_slice_waits_until_it_is_full_and_otherwise_it_does_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("halfmoon.store.maintenance._FULL_BYTES", 1000)
    store = open_store(SimDisk(Random(1)))
    store.tick(instant(NOW))
    behind = []
    for turn in range(1, 40):
        store.append("t", 0, [keyed(b"%d" % turn, f"U{turn}")], NOW + 20 * turn)
        store.tick(instant(NOW + 20 * turn))
        behind.append(store.end_offset - store._indexing.position)
    assert 900 < max(behind) < 1000
    assert behind.count(0) in (2, 3, 4, 5)

    store.tick(instant(NOW + 1000))

    assert store._indexing.position == store.end_offset


def test_the_index_goes_on_after_stops_kills_and_power_losses():
    for seed in range(10):
        disk = SimDisk(Random(seed))
        store = open_store(disk)
        some(store, 100)
        for now in range(NOW, NOW + 5000, 500):
            store.tick(instant(now))
            carry_out(store, now)
        if seed % 3 == 0:
            close(store)
        else:
            disk.crash(power=seed % 3 == 1)
        again = open_store(disk)
        for number in range(100):
            assert bodies(again.query("t", f"U{number}", 32, *ALWAYS).records) == [b"%d" % number]


def test_indexing_can_be_switched_off():
    disk = SimDisk(Random(1))
    store = open_store(disk, message_index_enable=False)
    some(store)
    store.tick(instant(NOW + 1000))
    assert store.query("t", "U1", 32, *ALWAYS).records == []
    assert disk.list("index") == []


def test_a_full_disk_stops_indexing_and_not_what_is_known():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    some(store)
    disk.full = True
    store.tick(instant(NOW + 10))
    disk.full = False
    for now in range(NOW + 60_000, NOW + 64_000, 100):
        store.tick(instant(now))
    assert store.refusal is None
    assert bodies(store.query("t", "U1", 32, *ALWAYS).records) == [b"1"]


def test_messages_behind_a_lagging_index_are_found_over_files_and_windows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(indexing, "_CATCH_UP_SLICES", 0)
    store = open_store(SimDisk(Random(1)), commit_log_file_bytes=4 * 1024 * 1024)
    for number in range(3000):
        unique = f"U{number}"
        store.append("t", number % 3, [keyed(b"%d" % number + bytes(3000), unique, "many")], NOW + number)
    assert len(store._indexing._marks) > 5
    for number in (2999, 1500, 1400, 2100):
        assert [body.rstrip(b"\0") for body in bodies(store.query("t", f"U{number}", 32, *ALWAYS).records)] == [b"%d" % number]
    store._indexing._marks.clear()  # as after a start
    newest = bodies(store.query("t", "many", 32, *ALWAYS).records)
    assert [body.rstrip(b"\0") for body in newest] == [b"%d" % number for number in range(2968, 3000)]
    assert len(store._indexing._marks) > 2


@pytest.mark.parametrize(
    "damage", [(2, b"\x01"), (0, bytes(40)), (4, b"\0"), (86, b"\x01")], ids=["size", "zeros", "magic", "body"]
)
@pytest.mark.parametrize("indexed", [True, False])
def test_messages_behind_a_damaged_record_are_found_by_key(monkeypatch: pytest.MonkeyPatch, damage, indexed: bool):
    store = open_store(SimDisk(Random(1)))
    some(store, 40)
    at, data = damage
    place = store.read("t", 0, 10, 1).pieces[0]
    physical_offset = int.from_bytes(place[28:36], "big")
    store.log.segments.write(physical_offset + at, data)
    if not indexed:
        monkeypatch.setattr(indexing, "_CATCH_UP_SLICES", 0)  # the index lags, and a query searches the log
    found = [number for number in range(40) if bodies(store.query("t", f"U{number}", 32, *ALWAYS).records) == [b"%d" % number]]
    assert found == [number for number in range(40) if number != 10]
    assert (store._indexing.position == store.end_offset) == indexed


def test_the_key_index_says_once_what_it_steps_over(caplog: pytest.LogCaptureFixture):
    store = open_store(SimDisk(Random(1)))
    some(store, 40)
    for number in (10, 20):
        physical_offset = int.from_bytes(store.read("t", 0, number, 1).pieces[0][28:36], "big")
        store.log.segments.write(physical_offset + 4, b"\0")
    store.query("t", "U30", 32, *ALWAYS)

    (line,) = [record.getMessage() for record in caplog.records if "the key index skips it" in record.getMessage()]
    assert line.startswith("commitlog/00000000000000000000, bytes ")


def test_marks_are_found_behind_a_damaged_record(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(indexing, "_CATCH_UP_SLICES", 0)
    store = open_store(SimDisk(Random(1)), commit_log_file_bytes=16 * 1024 * 1024)
    for number in range(3000):
        store.append("t", 0, [keyed(b"%d" % number + bytes(3000), f"U{number}")], NOW + number)
    store.log.segments.write(store.read("t", 0, 5, 1).pieces[0].nbytes * 5 + 2, b"\x07\x07")
    store._indexing._marks.clear()  # as after a start
    assert store.query("t", "U2999", 32, *ALWAYS).records
    assert len(store._indexing._marks) > 7


def test_a_query_looks_only_at_the_newest_bytes_behind_the_index_and_finds_records_only_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(indexing, "_CATCH_UP_SLICES", 0)
    monkeypatch.setattr(indexing, "_SEARCH_BYTES", 3 * 1024 * 1024)
    probed: list[int] = []
    monkeypatch.setattr(indexing, "next_record", lambda segments, at, stop: probed.append(at) or next_record(segments, at, stop))
    store = open_store(SimDisk(Random(1)), commit_log_file_bytes=16 * 1024 * 1024)
    for number in range(3000):
        store.append("t", 0, [keyed(bytes(3000), f"U{number}")], NOW + number)
    store._indexing._marks.clear()  # as after a start
    assert store.query("t", "U2999", 32, *ALWAYS).records
    assert store.query("t", "U2500", 32, *ALWAYS).records
    assert not store.query("t", "U100", 32, *ALWAYS).records  # until the index has reached it
    assert len(probed) <= 10
    assert min(probed) >= store.end_offset - 3 * 1024 * 1024


def test_an_index_file_whose_last_record_is_lost_is_not_trusted():
    lost = 0
    for seed in range(20):
        disk = SimDisk(Random(seed), write_back=0)
        store = open_store(disk)
        for number in range(99):  # one file is full with the last of them
            store.append("t", 0, [keyed(b"%d" % number, keys=f"k{number}")], NOW)
            if number == 97:
                store.tick(instant(NOW + 1000))
                carry_out(store)
        store.append("t", 0, [keyed(b"99", keys="k99")], NOW)
        for now in range(NOW + 2000, NOW + 6000, 500):
            store.tick(instant(now))
            for work in store.work():
                if work.name != "sync log":
                    run(work, now)
        disk.crash(power=True)
        store = open_store(disk)
        survived = store.queue_max("t", 0)
        store.append("t", 0, [keyed(b"new", keys="new")], NOW)
        close(store)
        assert [problem for problem in fsck(disk, small()) if problem.what != "record"] == []
        lost += survived == 98
    assert lost > 3


def test_a_record_whose_keys_lie_in_two_files_has_each_once_after_a_loss():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    for number in range(34):  # 3 keys each: the 33rd record fills the file of 99, and then one more by 2
        store.append("t", 0, [keyed(b"%d" % number, f"U{number}", f"a{number} b{number}" + " c" * (number == 5))], NOW)
    for now in range(NOW + 1000, NOW + 5000, 500):
        store.tick(instant(now))
        carry_out(store, now)
    assert [file.header.count for file in store._indexing.index.files] == [100, 5]
    before = store._indexing.index.files[0].header.end_offset
    assert store._indexing.safe_offset == before
    disk.crash(power=True)
    store = open_store(disk)
    for now in range(NOW + 6000, NOW + 8000, 500):
        store.tick(instant(now))
    assert [file.header.count for file in store._indexing.index.files] == [100, 5]


def test_while_the_key_index_cannot_follow_the_log_takes_nothing_and_goes_on_while_others_read():
    """Else repeats would be looked for in what is not indexed."""
    disk = SimDisk(Random(1))
    store = open_store(disk)
    some(store)
    disk.full = True
    for now in range(NOW + 10, NOW + 100, 20):
        store.tick(instant(now))
    disk.full = False
    end = store.end_offset
    assert "a key index file cannot be written" in str(store.refusal)
    with pytest.raises(StoreNotWritable, match="a key index file"):
        store.append("t", 0, [draft()], NOW + 20)
    assert store.end_offset == end
    for now in range(NOW + 100, NOW + 3000, 100):
        store.read("t", 0, 0, 1)
        store.tick(instant(now))
    assert store.append("t", 0, [draft()], NOW + 3000).queue_offset
