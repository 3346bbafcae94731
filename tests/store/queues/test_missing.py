"""Queues and key index files that somebody removed or cut: a start notices and rebuilds them from the log."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.instant import instant
from halfmoon.store import Store
from halfmoon.store.check.fsck import fsck
from halfmoon.store.layout import CONSUME_QUEUE, HALF_TOPIC, OP_TOPIC, file_name
from halfmoon.store.queues.missing import find_queues
from halfmoon.store.timer.messages import TIMER_TOPIC
from halfmoon.testing.disk import SimDisk, Stopped
from simulation.damage.rebuild import indexes_differ
from tests.store.driving import HOST, NOW, carry_out, close, draft, open_store, read_all, small
from tests.store.test_damage import FILE, path_of
from tests.store.transacting import add_halves, close_both, commit, open_both, truth_of

PER_FILE = 300
"""Entries of a queue file of 6,000 bytes."""
COUNT = 1000
QUEUES = [("t", 0), ("t", 1), (TIMER_TOPIC, 0)]


def fill(store: Store, count: int = COUNT) -> None:
    for number in range(count):
        for topic, queue_id in QUEUES:
            properties = b"UNIQ_KEY\x01%s%d-%d\x02" % (topic.encode(), queue_id, number)
            store.append(topic, queue_id, [draft(b"%d" % number, properties)], NOW)


def state_of(store: Store) -> dict:
    return {
        key: (store.queue_min(*key), store.queue_max(*key), {at: body for at, (body, _) in read_all(store, *key).items()})
        for key in sorted(store.queues)
    }


def used_disk(*, stop: str, seed: int = 1) -> tuple[SimDisk, dict]:
    disk = SimDisk(Random(seed), write_back=0)
    store = open_store(disk)
    fill(store)
    for now in (NOW + 1000, NOW + 2000):
        store.tick(instant(now))
        carry_out(store, now)
    state = state_of(store)
    if stop == "clean":
        close(store)
    else:
        disk.crash(power=stop == "power")
    return disk, state


def remove(disk: SimDisk, start: str) -> int:
    """Remove every file whose path begins so, and its directories."""
    gone = [path for path in disk._files if path.startswith(start)]
    for path in gone:
        disk.remove(path)
        disk._durable_names.pop(path, None)
    for path in sorted((path for path in disk._directories if path.startswith(start)), key=len, reverse=True):
        disk.remove(path)
    return len(gone)


LOST = {
    "all": f"{CONSUME_QUEUE}",
    "a topic": f"{CONSUME_QUEUE}/t",
    "a queue": f"{CONSUME_QUEUE}/t/1",
    "a timer's queue": f"{CONSUME_QUEUE}/{TIMER_TOPIC}",
    "the first file": f"{CONSUME_QUEUE}/t/1/{file_name(0)}",
    "a middle file": f"{CONSUME_QUEUE}/t/1/{file_name(12000)}",
    "the last file": f"{CONSUME_QUEUE}/t/1/{file_name(18000)}",
}


@pytest.mark.parametrize("stop", ["clean", "kill", "power"])
@pytest.mark.parametrize("lost", LOST)
def test_queues_that_are_gone_are_rebuilt_with_the_offsets_as_they_were(lost: str, stop: str, caplog):
    disk, state = used_disk(stop=stop)
    assert remove(disk, LOST[lost])
    store = open_store(disk)
    assert state_of(store) == state
    assert "rebuilt from the log" in caplog.text
    close(store)
    assert list(fsck(disk, small())) == []
    caplog.clear()
    again = open_store(disk)
    assert state_of(again) == state
    assert (again.recovered.records, caplog.text) == (0, "")


def test_queues_that_are_gone_before_the_first_sync_after_a_kill_are_rebuilt():
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk)
    fill(store, 50)
    store._write_checkpoint()
    fill(store, 50)
    state = state_of(store)
    disk.crash(power=False)
    remove(disk, CONSUME_QUEUE)
    assert state_of(open_store(disk)) == state


@pytest.mark.parametrize("size", [0, 77, 3000, 12000])
def test_a_queue_file_of_another_size_is_rebuilt(size: int):
    disk, state = used_disk(stop="clean")
    file = disk.open(f"{CONSUME_QUEUE}/t/0/{file_name(6000)}")
    file.data, file.size = (file.data + bytes(12000))[:size], size
    assert state_of(open_store(disk)) == state


def test_the_only_queue_file_cut_short_is_rebuilt_and_not_taken_for_another_setting():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    store.append("t", 0, [draft(b"a")], NOW)
    close(store)
    file = disk.open(f"{CONSUME_QUEUE}/t/0/{file_name(0)}")
    file.data, file.size = file.data[:77], 77
    assert [body for body, _ in read_all(open_store(disk), "t", 0).values()] == [b"a"]


def test_stray_files_in_the_directories_of_queues_are_no_matter():
    disk, state = used_disk(stop="clean")
    disk.create(f"{CONSUME_QUEUE}/t/0/notes.txt", 77)
    disk.create(f"{CONSUME_QUEUE}/README", 77)
    disk.create("index/notes", 77)
    assert state_of(open_store(disk)) == state


@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/t/1"])
def test_a_start_that_is_stopped_while_it_rebuilds_queues_begins_again(lost: str):
    stopped = 0
    for stop_after in (0, 1, 3, 8, 60):
        for power in (False, True):
            disk, state = used_disk(stop="clean")
            remove(disk, lost)
            disk.stop_after_writes = stop_after
            try:
                open_store(disk)
            except Stopped:
                stopped += 1
            disk.crash(power=power)
            assert state_of(open_store(disk)) == state, (stop_after, power)
    assert stopped >= 6


def test_lowest_offsets_after_retention_are_as_they_were():
    disk, _ = used_disk(stop="clean")
    store = open_store(disk)
    low = store.log.first + FILE
    store.maintenance.remove_now(store.log.segments.drop_before(low))
    store.maintenance._to_correct.extend(store.queues.values())
    store.maintenance._correct_queues()
    carry_out(store)
    state = state_of(store)
    assert state["t", 0][0] > 0
    disk.crash(power=False)
    remove(disk, CONSUME_QUEUE)
    again = open_store(disk)
    assert state_of(again) == state
    close(again)
    assert list(fsck(disk, small())) == []


def test_a_queue_whose_messages_are_all_gone_goes_on_where_it_was():
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk)
    for _ in range(5):
        store.append("old", 0, [draft(b"old")], NOW)
    fill(store, 400)
    store.maintenance.remove_now(store.log.segments.drop_before(store.log.first + FILE))
    store.maintenance._to_correct.extend(store.queues.values())
    store.maintenance._correct_queues()
    close(store)
    remove(disk, CONSUME_QUEUE)
    store = open_store(disk)
    assert (store.queue_min("old", 0), store.queue_max("old", 0)) == (5, 5)
    assert store.append("old", 0, [draft(b"next")], NOW).queue_offset >= 5


def test_a_topic_that_was_deleted_stays_deleted_and_one_made_again_has_its_new_messages_alone():
    for lost in ("consumequeue", "consumequeue/again", "consumequeue/t"):
        disk = SimDisk(Random(1), write_back=0)
        store = open_store(disk)
        for topic in ("deleted", "again", "t"):
            for number in range(20):
                store.append(topic, 0, [draft(b"old %d" % number)], NOW)
        for topic in ("deleted", "again"):
            store.delete_topic(topic, NOW)
            carry_out(store)
        for number in range(3):
            store.append("again", 0, [draft(b"new %d" % number)], NOW)
        close(store)
        remove(disk, lost)
        store = open_store(disk)
        assert store.topics() == ["again", "t"]
        assert [body for body, _ in read_all(store, "again", 0).values()] == [b"new 0", b"new 1", b"new 2"]
        assert len(read_all(store, "t", 0)) == 20


def test_pending_transactions_outlive_their_queues():
    for lost in (HALF_TOPIC, OP_TOPIC):
        disk = SimDisk(Random(1), write_back=0)
        store, index = open_both(disk)
        add_halves(store, index, ["g"] * 40)
        for at in (3, 17):
            commit(store, index, at)
        truth = truth_of(store)
        pending = index.pending_count
        close_both(store, index)
        remove(disk, f"{CONSUME_QUEUE}/{lost}")
        store, index = open_both(disk)
        assert (truth_of(store), index.pending_count) == (truth, pending)
        close_both(store, index)


def test_the_directory_of_another_broker_without_queues_gets_them_from_its_log():
    disk, state = used_disk(stop="clean")
    remove(disk, CONSUME_QUEUE)
    remove(disk, "config/")
    file = disk.open("checkpoint")
    file.data[24:] = bytes(4072)
    assert state_of(open_store(disk)) == state


def test_a_power_loss_alone_rebuilds_no_queue(caplog):
    for seed in range(20):
        disk = SimDisk(Random(seed), write_back=0)
        store = open_store(disk)
        fill(store, 100)
        store.tick(instant(NOW + 1000))
        carry_out(store)
        fill(store, 150)
        disk.crash(power=True)
        state_of(open_store(disk))
    assert "rebuilt" not in caplog.text


# ---------------------------------------------------------------- key index


def index_problems(disk: SimDisk) -> list[str]:
    return indexes_differ(disk, queue_file_bytes=6000, hash_slots=64, index_entries_max=100)


def indexed(store: Store) -> None:
    for round in range(200):
        store.tick(instant(NOW + 10_000 + 20 * round))
        carry_out(store)


@pytest.mark.parametrize("stop", ["clean", "kill"])
@pytest.mark.parametrize("which", [0, 3, -1, None], ids=["first", "middle", "last", "all"])
@pytest.mark.parametrize("cut", [False, True], ids=["removed", "cut short"])
def test_key_index_files_that_are_gone_are_rebuilt(which: int | None, stop: str, cut: bool, caplog):
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk)
    fill(store, 200)
    indexed(store)
    close(store) if stop == "clean" else disk.crash(power=False)
    names = disk.list("index")
    assert len(names) >= 6
    for name in names if which is None else [names[which]]:
        if cut:
            file = disk.open(f"index/{name}")
            file.data, file.size = file.data[:77], 77
        else:
            disk.remove(f"index/{name}")
    store = open_store(disk)
    assert "index is rebuilt from the log in the background" in caplog.text
    indexed(store)
    close(store)
    assert index_problems(disk) == []


def test_a_change_of_sizes_is_still_refused_in_the_directory_of_another_broker():
    disk, _ = used_disk(stop="clean")
    remove(disk, "config/")
    with pytest.raises(Exception, match=r"the setting says 12000.*Set mappedFileSizeConsumeQueue=6000"):
        Store.open(disk, small(queue_file_bytes=12000), HOST, instant(NOW))
    assert find_queues(disk, 6000, noted=False).broken == {}
    assert disk.exists(path_of(0))


def test_queues_that_are_gone_are_noticed_though_a_power_loss_may_have_taken_their_newest_file():
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk, flush_disk_type="SYNC_FLUSH")
    store.append("t", 0, [draft(b"%d" % number) for number in range(10)], NOW)
    store.flush(1, NOW)
    carry_out(store, NOW)
    disk.crash(power=True)
    store = open_store(disk, flush_disk_type="SYNC_FLUSH")
    assert store.append("t", 0, [draft(b"later")], NOW).queue_offset > 10  # behind what was reserved, in a new file
    disk.crash(power=False)
    assert remove(disk, "consumequeue/t/0/")
    disk.crash(power=True)
    store = open_store(disk, flush_disk_type="SYNC_FLUSH")
    assert [body for body, _ in read_all(store, "t", 0).values()][:10] == [b"%d" % number for number in range(10)]
