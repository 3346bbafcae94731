"""A repair mends what is derived, seals what is damaged, loses nothing that is whole, and may be killed at any of its writes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from halfmoon.broker.settings import BrokerSettings
from halfmoon.errors import StoreError, StoreLocked
from halfmoon.programs.repair import repair
from halfmoon.store.check.fsck import Problem, fsck
from halfmoon.store.check.repair import Plan
from halfmoon.store.log.commit_log import CommitLog, DamagedRange
from halfmoon.store.settings import StoreSettings
from halfmoon.testing.disk import SimDisk, Stopped
from halfmoon.wire.headers.offset import UpdateConsumerOffset
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.record import decode_record
from simulation.damage.rebuild import walk_log
from tests.broker.half import COMMIT, GROUP, end, prepare, produce
from tests.broker.talk import SMALL, START_MS, Talk

LOG, QUEUE = "commitlog/00000000000000000000", "consumequeue/T/1/00000000000000000000"
OFFSETS = "config/consumerOffset.json"
OWN = {**SMALL, "commit_log_file_bytes": 16 * 1024, "index_entries_max": 40, "transaction_file_records": 1000}
STORE = StoreSettings(**OWN)
NOW = START_MS + 60_000
KILLS = 10


def fill(disk: SimDisk) -> None:
    """Write 200 messages to four queues, halves that are pending and committed, and progress, and stop cleanly."""
    talk = Talk("", disk=disk, store=OWN)
    produce(talk, GROUP)
    for number in range(200):
        talk.send(body=b"body %03d" % number, queue_id=number % 4, properties=f"UNIQ_KEY\x01U{number:03}\x02TAGS\x01a\x02")
    first, _ = [prepare(talk, key) for key in ("one", "two")]
    end(talk, first, COMMIT, key="one")
    for queue_id in range(4):
        talk.ask(UpdateConsumerOffset(consumer_group="G", topic="T", queue_id=queue_id, commit_offset=20))
    talk.wait(6000)
    talk.broker.stop(talk.instant)
    talk.run_effects()
    talk.broker.close(talk.instant)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """The files of a stopped store that is sound."""
    disk = SimDisk(Random(1))
    fill(disk)
    assert certain(disk) == []
    return {path: bytes(disk.open(path).data) for path in disk.paths()}


def disk_with(files: dict[str, bytes], seed: int = 1) -> SimDisk:
    """Return a disk that holds files, all of them on the device."""
    disk = SimDisk(Random(seed))
    for path, data in files.items():
        disk.create(path, len(data))
        disk.overwrite(path, data)
        disk.sync_directory(path.rpartition("/")[0])
    return disk


@pytest.fixture
def disk(files: dict[str, bytes]) -> SimDisk:
    """A disk with that store."""
    return disk_with(files)


def certain(disk: SimDisk) -> list[Problem]:
    return [problem for problem in fsck(disk, STORE) if problem.certain]


def mended(disk: SimDisk) -> tuple[list[Plan], list[str]]:
    """Repair, and return the plans that were carried out and what was said. Nothing may be left."""
    plans, said = list[Plan](), list[str]()

    def agree(plan: Plan) -> bool:
        plans.append(plan)
        return True

    left = repair(disk, BrokerSettings(), STORE, NOW, agree=agree, say=said.append)
    assert left == certain(disk) == [], [step for plan in plans for step in plan.steps]
    return plans, said


def bodies(disk: SimDisk) -> dict[tuple[str, int, int], bytes]:
    """Return the whole messages of the log by queue and offset, as they are read from the format alone."""
    found = {}
    for view in walk_log(disk):
        message = decode_record(view)
        if message.sys_flag & 12 != 12:
            found[message.topic, message.queue_id, message.queue_offset] = bytes(message.body)
    return found


def read_back(disk: SimDisk) -> dict[tuple[str, int, int], bytes]:
    """Return the messages of T that a consumer reads from a broker on the directory, by queue and offset."""
    talk = Talk("", disk=disk, store=OWN)
    found = {}
    for queue_id in range(4):
        offset = 0
        while (reply := talk.pull(offset=offset, queue_id=queue_id)).code in (0, 20, 21):
            at, data = 0, memoryview(reply.body)
            while at < len(data):
                message = decode_record(data[at : at + int.from_bytes(data[at : at + 4], "big")])
                found["T", queue_id, message.queue_offset] = bytes(message.body)
                at += int.from_bytes(data[at : at + 4], "big")
            if int(reply.fields["nextBeginOffset"]) <= offset:
                break
            offset = int(reply.fields["nextBeginOffset"])
    talk.broker.stop(talk.instant)
    talk.run_effects()
    talk.broker.close(talk.instant)
    return found


def damage(disk: SimDisk, path: str, at: int, data: bytes) -> None:
    file = disk.open(path)
    file.data[at : at + len(data)] = file.durable[at : at + len(data)] = data


def record_at(disk: SimDisk, number: int) -> tuple[int, int]:
    """Return offset and size of a record of the log."""
    view = list(walk_log(disk))[number]
    return decode_record(view).physical_offset, len(view)


def hit_record(disk: SimDisk) -> None:
    at, _ = record_at(disk, 50)
    damage(disk, LOG, at + 88, b"\xff\xff")


def hit_two_records_and_more(disk: SimDisk) -> None:
    at, size = record_at(disk, 60)
    damage(disk, LOG, at + 10, bytes(3 * size))


def hit_end_of_file(disk: SimDisk) -> None:
    damage(disk, LOG, 16 * 1024 - 600, b"\xee" * 600)


def hit_last_record(disk: SimDisk) -> None:
    view = list(walk_log(disk))[-1]
    at = decode_record(view).physical_offset
    damage(disk, f"commitlog/{at // 16384 * 16384:020d}", at % 16384 + 4, b"\0\0\0\0")


def noise_behind_the_end(disk: SimDisk) -> None:
    view = list(walk_log(disk))[-1]
    at = decode_record(view).physical_offset + len(view)
    damage(disk, f"commitlog/{at // 16384 * 16384:020d}", at % 16384, b"\x5a" * 300)


def wrong_entry(disk: SimDisk) -> None:
    damage(disk, QUEUE, 20 * 7 + 3, b"\1\1")


def no_queues(disk: SimDisk) -> None:
    disk.vanish("consumequeue/T/")


def short_queue_file(disk: SimDisk) -> None:
    disk.overwrite(QUEUE, bytes(disk.open(QUEUE).data[:100]))


def broken_chain(disk: SimDisk) -> None:
    damage(disk, f"index/{disk.list('index')[0]}", 40, bytes(4 * STORE.hash_slots))


def no_index_file(disk: SimDisk) -> None:
    disk.vanish(f"index/{disk.list('index')[1]}")


def wrong_state(disk: SimDisk) -> None:
    [name] = disk.list("transaction/statetable")
    damage(disk, f"transaction/statetable/{name}", 3, b"\x77\x77\x77\x77")


def empty_table(disk: SimDisk) -> None:
    disk.overwrite(OFFSETS, b"")


def half_written_table(disk: SimDisk) -> None:
    disk.overwrite("config/topics.json", bytes(disk.open("config/topics.json").data[:40]))


def table_without_a_copy(disk: SimDisk) -> None:
    disk.overwrite(OFFSETS, b"{")
    if disk.exists(f"{OFFSETS}.bak"):
        disk.overwrite(f"{OFFSETS}.bak", b"{")


def table_is_a_directory(disk: SimDisk) -> None:
    disk.vanish(OFFSETS)
    disk.create(f"{OFFSETS}/something", 10)


def progress_ahead(disk: SimDisk) -> None:
    disk.save(OFFSETS, b'{"offsetTable":{"T@G":{0:20,1:7000}}}', keep_previous=False)


def no_log_file(disk: SimDisk) -> None:
    disk.vanish("commitlog/00000000000000016384")


def short_log_file(disk: SimDisk) -> None:
    path = "commitlog/00000000000000016384"
    at = next(at for at, _ in (record_at(disk, number) for number in range(100, 200)) if at > 16384 + 5000)
    disk.overwrite(path, bytes(disk.open(path).data[: at - 16384 + 90]))  # in a body, so that zeros do not make it whole


def last_log_file_is_short(disk: SimDisk) -> None:
    path = f"commitlog/{disk.list('commitlog')[-1]}"
    disk.overwrite(path, bytes(disk.open(path).data[:200]))


def last_log_file_is_gone(disk: SimDisk) -> None:
    at = record_at(disk, -1)[0] // 16384 * 16384
    for name in disk.list("commitlog"):
        if int(name) >= at:
            disk.vanish(f"commitlog/{name}")


Harm = Callable[[SimDisk], None]
IN_LOG: list[Harm] = [
    hit_record, hit_two_records_and_more, hit_end_of_file, hit_last_record, noise_behind_the_end,
    no_log_file, short_log_file, last_log_file_is_short, last_log_file_is_gone,
]  # fmt: skip
ELSEWHERE: list[Harm] = [
    wrong_entry, no_queues, short_queue_file, broken_chain, no_index_file, wrong_state, empty_table, half_written_table,
    table_without_a_copy, table_is_a_directory, progress_ahead,
]  # fmt: skip


@pytest.mark.parametrize("harm", [*IN_LOG, *ELSEWHERE], ids=lambda harm: harm.__name__)
def test_a_store_that_was_harmed_is_sound_again_and_has_all_that_is_whole(disk: SimDisk, harm: Harm):
    harm(disk)
    whole = bodies(disk)
    plans, said = mended(disk)

    assert plans
    assert all(step.place and step.why and step.action and step.lost for plan in plans for step in plan.steps)
    assert said
    assert bodies(disk) == whole, "a whole record was touched"
    read = read_back(disk)
    assert read == {place: body for place, body in whole.items() if place[0] == "T"}
    assert certain(disk) == []


@pytest.mark.parametrize("harm", IN_LOG, ids=lambda harm: harm.__name__)
def test_whoever_walks_the_log_of_a_mended_store_gets_to_its_end(disk: SimDisk, harm: Harm):
    harm(disk)
    mended(disk)

    log = CommitLog(disk, STORE.commit_log_file_bytes, bytes(8), STORE.message_bytes_max)
    log.segments.load()
    assert not [found for _, found in log.scan(log.first) if isinstance(found, DamagedRange)]


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power"])
@pytest.mark.parametrize(
    "harm", [hit_two_records_and_more, no_log_file, wrong_entry, table_without_a_copy], ids=lambda harm: harm.__name__
)
def test_a_repair_that_is_killed_at_a_write_is_ended_by_the_next(files: dict[str, bytes], harm: Harm, power: bool):
    disk = disk_with(files)
    harm(disk)
    whole, disk.stop_after_writes = bodies(disk), 1_000_000
    mended(disk)
    assert disk.stop_after_writes is not None
    writes = 1_000_000 - disk.stop_after_writes
    for number in range(int(power), writes, max(1, writes // KILLS)):
        disk = disk_with(files, number)
        harm(disk)
        disk.stop_after_writes = number
        with pytest.raises(Stopped):
            repair(disk, BrokerSettings(), STORE, NOW, agree=lambda plan: True, say=lambda text: None)
        disk.crash(power=power)
        mended(disk)
        assert bodies(disk) == whole, f"killed at write {number}"
        assert read_back(disk) == {place: body for place, body in whole.items() if place[0] == "T"}
    assert writes > KILLS


def test_no_queue_offset_is_given_out_again_after_the_last_messages_of_a_queue_were_damaged(disk: SimDisk):
    last = max(place for place in bodies(disk) if place[:2] == ("T", 3))
    at = next(m.physical_offset for m in map(decode_record, walk_log(disk)) if (m.topic, m.queue_id, m.queue_offset) == last)
    damage(disk, f"commitlog/{at // 16384 * 16384:020d}", at % 16384 + 88, b"\xff\xff")
    mended(disk)

    talk = Talk("", disk=disk, store=OWN)
    assert talk.send(body=b"next", queue_id=3).header(SendMessageReply).queue_offset > last[2]


def test_what_is_lost_is_said_with_queue_offsets_and_count(disk: SimDisk):
    hit_record(disk)
    [plan], _ = mended(disk)

    assert [step.lost for step in plan.steps if "commitlog" in step.place] == ["T, queue 2, offset 12 (1 message)"]


def test_what_is_set_aside_is_kept_and_bounded(disk: SimDisk):
    kept = bytes(disk.open(QUEUE).data)
    for number in range(6):
        wrong_entry(disk)
        before = bytes(disk.open(QUEUE).data)
        left = repair(
            disk, BrokerSettings(), STORE, NOW + number * 1000, agree=lambda plan: True, say=lambda text: None
        )  # fmt: skip
        assert left == []
    folders = [name for name in disk.list("") if name.startswith("repaired-")]
    assert len(folders) <= 5
    assert bytes(disk.open(f"{folders[-1]}/{QUEUE.replace('/', '-')}").data) == before != kept


def test_a_plan_that_is_declined_changes_nothing(disk: SimDisk):
    hit_record(disk)
    wrong_entry(disk)
    before = {path: bytes(disk.open(path).data) for path in disk.paths() if path != "lock"}
    left = repair(disk, BrokerSettings(), STORE, NOW, agree=lambda plan: False, say=lambda text: None)

    assert left
    assert {path: bytes(disk.open(path).data) for path in disk.paths() if path != "lock"} == before


def test_a_log_file_that_is_put_back_while_the_repair_asks_is_not_replaced(disk: SimDisk):
    path = "commitlog/00000000000000016384"
    whole = bytes(disk.open(path).data)
    disk.vanish(path)
    before = {name: bytes(disk.open(name).data) for name in disk.paths() if name != "lock"}

    def puts_back(plan: Plan) -> bool:
        disk.create(path, len(whole))
        disk.overwrite(path, whole)
        return True

    with pytest.raises(StoreError, match="changed since it was checked"):
        repair(disk, BrokerSettings(), STORE, NOW, agree=puts_back, say=lambda text: None)
    assert {name: bytes(disk.open(name).data) for name in disk.paths() if name != "lock"} == before | {path: whole}


def test_no_broker_starts_while_the_repair_asks(disk: SimDisk):
    def starts(plan: Plan) -> bool:
        with pytest.raises(StoreLocked):
            disk.lock("lock")
        return False

    hit_record(disk)
    assert repair(disk, BrokerSettings(), STORE, NOW, agree=starts, say=lambda text: None)
    disk.lock("lock").release()


def test_a_sound_store_is_not_even_started(disk: SimDisk):
    before = {path: bytes(disk.open(path).data) for path in disk.paths()}
    assert mended(disk) == ([], [])
    assert {path: bytes(disk.open(path).data) for path in disk.paths()} == before
