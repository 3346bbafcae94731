"""What a start takes of the saved tables, and that it says when that is not what was saved last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from halfmoon.broker.tables import Tables
from halfmoon.errors import PeerError, StoreError
from halfmoon.model import MessageQueue
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import GroupRequestMode, LockBatchRequest, to_json
from halfmoon.wire.headers.client import LockBatchMq, SetMessageRequestMode
from halfmoon.wire.headers.offset import UpdateConsumerOffset
from halfmoon.wire.headers.topic import TrimTopic
from tests.broker.talk import Talk

PATH = "config/consumerOffset.json"


def load(disk: SimDisk) -> bytes | None:
    def parse(data: bytes) -> bytes:
        if data.startswith(b"bad"):
            raise PeerError("not a table")
        return data

    return Tables(disk).load(PATH, parse)


def test_a_table_that_was_saved_is_taken_without_a_word(caplog):
    disk = SimDisk(Random(1))
    assert load(disk) is None
    disk.save(PATH, b"older")
    disk.save(PATH, b"newer")
    assert load(disk) == b"newer"
    assert caplog.text == ""


@pytest.mark.parametrize(("data", "why"), [(b"", "is empty"), (b" \n", "is empty"), (b"bad", "not a table"), (None, "is missing")])
def test_that_the_copy_saved_before_is_taken_is_said(data: bytes | None, why: str, caplog):
    disk = SimDisk(Random(1))
    disk.save(PATH, b"older")
    disk.save(PATH, b"newer")
    if data is None:
        disk.remove(PATH)
    else:
        disk.save(PATH, data, keep_previous=False)
    assert load(disk) == b"older"
    assert why in caplog.text
    assert f"{PATH}.bak, later changes are lost" in caplog.text


def test_that_an_empty_table_is_begun_with_is_said(caplog):
    disk = SimDisk(Random(1))
    disk.save(PATH, b"")
    assert load(disk) is None
    assert f"{PATH} is empty: the broker begins without what was saved there" in caplog.text


def test_a_table_that_cannot_be_read_at_all_is_named_with_the_remedy():
    disk = SimDisk(Random(1))
    disk.save(PATH, b"bad")
    disk.save(PATH, b"bad too")
    with pytest.raises(StoreError, match=f"{PATH}.*remove it"):
        load(disk)


# ---------------------------------------------------------------- each table of a broker


TABLES = (
    "consumerOffset", "delayOffset", "messageRequestMode", "queueLocks", "subscriptionGroup", "timerOffset", "topicTrims", "topics",
)  # fmt: skip
UPTIME = "brokerUptime"
"""The one of which there is no older copy: what it says is nearly known without it."""

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut short": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "another's": lambda data: b"[1, 2, 3]",
}


@pytest.fixture
def stopped(talk: Talk) -> Talk:
    """A broker that has saved all of its tables several times, and is stopped."""
    for number in range(2):
        for properties in ("", "DELAY\x011\x02", f"TIMER_DELIVER_MS\x01{talk.now + 60_000}\x02"):
            assert talk.send("T", properties=properties).code == 0
        assert talk.consume("T", group=f"G{number}").code == 0
        mode = GroupRequestMode(topic="T", consumer_group=f"G{number}", mode="PULL")
        assert talk.ask(SetMessageRequestMode(), to_json(mode)).code == 0
        assert talk.ask(UpdateConsumerOffset(consumer_group="G0", topic="T", queue_id=0, commit_offset=1 + number)).code == 0
        assert talk.ask(TrimTopic(topic="T", offset=0)).code == 0
        locked = to_json(LockBatchRequest(f"c{number}", "G0", [MessageQueue("T", "broker-a", number)]))
        assert talk.ask(LockBatchMq(), locked).code == 0
        talk.wait(10_000)
        talk.restart()
    talk.broker.stop(talk.instant)
    talk.run_effects()
    talk.broker.close(talk.instant)
    return talk


def paths_of(talk: Talk, name: str) -> tuple[Path, Path]:
    return talk.root / f"config/{name}.json", talk.root / f"config/{name}.json.bak"


def test_these_are_the_tables_of_a_broker(stopped: Talk):
    tables = sorted(path for path in stopped.broker.tables._tables if path.endswith(".json"))
    assert sorted(f"config/{name}.json" for name in (*TABLES, UPTIME)) == tables
    assert [path.name for name in TABLES for path in paths_of(stopped, name) if not path.exists()] == []


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("damage", [*DAMAGE, "a directory"])
def test_a_start_names_a_damaged_table_keeps_what_there_is_of_it_and_takes_the_copy_before(
    stopped: Talk, name: str, damage: str, caplog: pytest.LogCaptureFixture
):
    path, _ = paths_of(stopped, name)
    if damage == "a directory":
        path.unlink()
        path.mkdir()
        (path / "mine").write_text("kept")
    else:
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
    left = None if path.is_dir() else path.read_bytes()
    stopped.open()

    assert f"config/{name}.json" in caplog.text
    assert f"using the older copy config/{name}.json.bak" in caplog.text
    kept = stopped.root / f"quarantine/config-{name}.json"
    if left is None:
        assert (kept / "mine").read_text() == "kept"
    elif left:
        assert kept.read_bytes() == left
    stopped.restart()
    assert stopped.broker.tables.failed == {}, "it can be saved again"
    assert stopped.pull("T").code == 0


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("damage", ["cut short", "a directory"])
def test_a_start_without_any_readable_copy_of_a_table_is_refused_by_name_and_changes_nothing(stopped: Talk, name: str, damage: str):
    path, before = paths_of(stopped, name)
    before.write_bytes(data := before.read_bytes()[:-5])
    if damage == "a directory":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(data)
    with pytest.raises(StoreError, match=rf"config/{name}\.json.*config/{name}\.json\.bak"):
        stopped.open()
    assert before.read_bytes() == data
    assert path.exists()
    assert not (stopped.root / "quarantine").exists()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_start_without_the_table_of_its_uptime_says_so_and_goes_on(stopped: Talk, damage: str, caplog: pytest.LogCaptureFixture):
    path, _ = paths_of(stopped, UPTIME)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    stopped.open()
    assert f"config/{UPTIME}.json" in caplog.text
    assert stopped.pull("T").code == 0
