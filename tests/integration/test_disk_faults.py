"""A running broker whose disk is full or read-only, or fails writes and syncs, or that has few descriptors: nothing is lost."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from halfmoon import Admin, BrokerError, HalfmoonError, Message, Producer, SendFailed
from halfmoon.cli.shared.reading import FIRST, read, starts_and_ends
from tests.interop.ours import Serve
from tests.runtime.files.test_full_disk import fill, mounted
from tests.waiting import until

pytestmark = pytest.mark.slow

NOISE = Random(1).randbytes(20_000)
SMALL = {"mappedFileSizeCommitLog": 1 << 20, "cleanResourceInterval": 200, "maxHashSlotNum": 1000, "maxIndexNum": 4000}
KEEPING = {**SMALL, "cleanFileForciblyEnable": "false"}
"""Settings with which a full disk deletes nothing that is not expired."""


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    yield from mounted("-t", "tmpfs", "-o", "size=24m", "none", on=tmp_path / "tmpfs")


def refusal(producer: Producer, topic: str, body: bytes = NOISE) -> tuple[int | None, str]:
    """Send until something is refused: a disk may have room again for what is short. Return code and reason."""

    def refused() -> tuple[int | None, str] | None:
        try:
            producer.send(Message(topic, body))
        except (BrokerError, SendFailed) as error:
            return error.code, str(error)
        return None

    return until(refused, "a refusal")


def bodies(server: Serve, topic: str) -> list[bytes]:
    return [message.body for message in read(server.nameserver, starts_and_ends(server.nameserver, topic, FIRST))]


def sent(producer: Producer, topic: str, first: int, count: int) -> list[bytes]:
    """Send numbered messages of 20 KB, which no compression makes small, and return what was acknowledged."""
    made = [b"%06d" % number + NOISE for number in range(first, first + count)]
    return [body for body in made if producer.send(Message(topic, body)).offset_msg_id]


def taken(producer: Producer, topic: str, body: bytes) -> bool:
    try:
        producer.send(Message(topic, body))
    except HalfmoonError:
        return False
    return True


def test_a_full_disk_refuses_with_14_serves_reads_starts_for_reading_and_goes_on_by_itself(tmpfs: Path):
    server = Serve(tmpfs / "store", settings=KEEPING)
    server.start()
    try:
        with Producer(group="P", nameserver=server.nameserver, retries_max=0) as producer:
            acknowledged = sent(producer, "T", 0, 100)
            fill(tmpfs)
            number = 100
            until(lambda: not taken(producer, "T", b"last%06d" % number + NOISE), "the disk to be full")
            code, reason = refusal(producer, "T")
            assert code == 14
            assert "full" in reason or "No space" in reason
            assert set(acknowledged) <= set(bodies(server, "T"))

            (tmpfs / "ballast").unlink()
            until(lambda: taken(producer, "T", b"again"), "sends to be taken again")

            before = bodies(server, "T")
            fill(tmpfs)
            until(lambda: not taken(producer, "T", NOISE), "the disk to be full")
            server.kill()
            server.start()
            until(lambda: refusal(producer, "T")[0] == 14, "the refusal of a broker that is open for reading")
            assert set(before) <= set(bodies(server, "T"))
            with Admin(nameserver=server.nameserver) as admin:
                assert "full" in admin.broker_runtime_info(server.broker)["brokerFaults"]

            (tmpfs / "ballast").unlink()
            until(lambda: taken(producer, "T", b"and again"), "sends to be taken again")
            assert {*before, b"again", b"and again"} <= set(bodies(server, "T"))
    finally:
        server.stop()


def test_a_disk_that_fills_up_costs_the_oldest_files_and_sends_go_on_where_files_go_by_force(tmpfs: Path):
    server = Serve(tmpfs / "store", settings=SMALL)
    server.start()
    try:
        with Producer(group="P", nameserver=server.nameserver, retries_max=0) as producer:
            acknowledged = [b"%06d" % number + NOISE for number in range(1200)]  # 24 MB, of a disk of 24
            for body in acknowledged:  # refused at times, until the next look at the disk
                until(lambda body=body: taken(producer, "T", body), "room")
        with Admin(nameserver=server.nameserver) as admin:
            first = min(ends.min_offset for ends in admin.topic_stats("T").values())
        found = bodies(server, "T")
    finally:
        server.stop()
    assert first > 0
    assert set(acknowledged[-100:]) <= set(found)


def test_a_directory_on_a_read_only_file_system_is_refused_with_its_name_and_not_touched(tmpfs: Path):
    data = tmpfs / "store"
    server = Serve(tmpfs.parent / "view", settings=KEEPING)
    server.data = data
    server.start()
    with Producer(group="P", nameserver=server.nameserver) as producer:
        producer.send(Message("T", b"1"))
    assert server.stop() == 0
    server.data = tmpfs.parent / "view"
    for _ in mounted("--bind", str(data), on=server.data, options="remount,ro,bind"):
        with pytest.raises(RuntimeError, match=r"view/\S*: Read-only file system"):
            server.start()
        assert "Traceback" not in server.log
    server.data = data
    server.start()
    assert bodies(server, "T") == [b"1"]
    assert server.stop() == 0


def test_a_broker_that_may_open_64_files_serves_more_queues_than_that(tmp_path: Path):
    limit = ["/bin/sh", "-c", 'ulimit -n 64 && exec "$@"', "sh"]
    server = Serve(tmp_path / "store", settings=KEEPING, prefix=limit)
    server.start()
    try:
        with Admin(nameserver=server.nameserver) as admin, Producer(group="P", nameserver=server.nameserver) as producer:
            for number in range(20):
                admin.create_topic(f"T{number}", queue_count=8)
            for turn in range(2):
                for number in range(20):
                    for queue in producer.queues(f"T{number}"):
                        producer.send(Message(queue.topic, b"%d" % turn), queue=queue)
            server.kill()
            server.start()
            stats = [ends for number in range(20) for ends in admin.topic_stats(f"T{number}").values()]
            assert [ends.max_offset for ends in stats] == [2] * 160
            assert "brokerFaults" not in admin.broker_runtime_info(server.broker)
    finally:
        assert server.stop() == 0
    assert "ERROR" not in server.log


# ---------------------------------------------------------------- a device that fails


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The library that makes system calls fail."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc: what a broker does when syncs and writes fail is NOT tested")
    built = tmp_path / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(["gcc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(built), str(source), "-ldl"], check=True)
    return built


EIO, ENOSPC = 5, 28


@pytest.mark.parametrize("kind", ["sync", "write"])
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_device_that_fails_ends_the_sends_with_the_reason_and_a_restart_has_all_that_was_acknowledged(
    tmp_path: Path, library: Path, kind: str, flush: str
):
    control = tmp_path / "control"
    server = Serve(
        tmp_path / "store", settings={**KEEPING, "flushDiskType": flush},
        environment={"LD_PRELOAD": str(library), "FAULTS": str(control)},
    )  # fmt: skip
    server.start()
    try:
        with Producer(group="P", nameserver=server.nameserver, retries_max=0) as producer:
            acknowledged = sent(producer, "T", 0, 20)
            control.write_text(f"{kind} {EIO}")
            count = iter(range(100, 10_000))

            def another() -> bool:
                """Send one more; whether it was refused."""
                body = b"%06d" % next(count) + NOISE
                if taken(producer, "T", body):
                    assert flush == "ASYNC_FLUSH", "it was acknowledged as durable, and is not"
                    acknowledged.append(body)
                    return False
                return True

            until(another, "the device to fail")
            control.unlink()  # which changes nothing: nobody knows what the device has
            assert refusal(producer, "T")[0] == 14
            assert set(acknowledged) <= set(bodies(server, "T"))
        server.kill()
        assert "the store takes no more messages until the broker restarts" in server.log
        assert "Input/output error" in server.log
        server.start()
        assert set(acknowledged) <= set(bodies(server, "T"))
        with Producer(group="P", nameserver=server.nameserver) as producer:
            sent(producer, "T", 1, 1)
    finally:
        server.stop()


def test_writes_that_find_no_room_are_refused_and_taken_again_without_a_restart(tmp_path: Path, library: Path):
    control = tmp_path / "control"
    server = Serve(tmp_path / "store", settings=KEEPING, environment={"LD_PRELOAD": str(library), "FAULTS": str(control)})
    server.start()
    try:
        with Producer(group="P", nameserver=server.nameserver, retries_max=0) as producer:
            acknowledged = sent(producer, "T", 0, 20)
            control.write_text(f"write {ENOSPC}")
            code, reason = refusal(producer, "T")
            assert code == 14
            assert "No space" in reason
            assert set(bodies(server, "T")) == set(acknowledged)
            control.unlink()
            acknowledged += sent(producer, "T", 20, 20)
        assert sorted(bodies(server, "T")) == sorted(acknowledged)
    finally:
        assert server.stop() == 0
