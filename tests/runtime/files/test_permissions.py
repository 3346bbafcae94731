"""Files are their owner's alone unless a setting says otherwise, whatever the umask is; what was there keeps its modes."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon import Message, Producer
from halfmoon.client.files import OffsetsOnDisk
from halfmoon.programs.configuration import BROKER, NAME_SERVER, configuration
from halfmoon.programs.embedded import both, broker, name_server
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.files.permissions import PERMISSIONS, make_directory
from halfmoon.testing.local import SMALL, LocalCluster


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that every user of the machine can get to."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def modes(root: Path) -> dict[str, int]:
    """Modes of everything below a directory, and of itself as ``.``."""
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}


def unlike(root: Path, directory: int, file: int) -> dict[str, str]:
    return {
        name: oct(mode) for name, mode in modes(root).items() if mode != (directory if (root / name).is_dir() else file)
    }  # fmt: skip


def fill(root: Path, settings: dict[str, object]) -> None:
    """Use every kind of file: log, queues, index, timers, transactions, tables saved twice, a spare file, the lock."""
    with LocalCluster(root, settings) as cluster:
        with Producer(group="senders", nameserver=cluster.nameserver) as producer:
            for number in range(20):
                producer.send(Message("Orders", b"x" * 300_000, keys=str(number)))
            producer.send(Message("Orders", b"later", delay=3600))
        cluster.restart()


def test_what_a_broker_makes_is_its_owners_alone(tmp_path: Path, umask: int):
    root = tmp_path / "made" / "data"
    fill(root, {"mappedFileSizeCommitLog": 4 * 1024**2 + 200_000, "maxMessageSize": 1024**2})
    names = modes(root)
    assert len(names) > 15
    assert {"lock", "nameserver", "commitlog", "config/topics.json", "config/topics.json.bak"} <= names.keys()
    assert unlike(tmp_path / "made", 0o700, 0o600) == {}


@pytest.mark.parametrize(("readable_by", "directory", "file"), [("group", 0o750, 0o640), ("all", 0o755, 0o644)])
def test_a_setting_lets_others_read(tmp_path: Path, umask: int, readable_by: str, directory: int, file: int):
    fill(tmp_path / "data", {"store.readable_by": readable_by})
    assert unlike(tmp_path / "data", directory, file) == {}


def test_the_progress_of_a_broadcasting_consumer_is_its_owners_alone(tmp_path: Path, umask: int):
    offsets = OffsetsOnDisk(str(tmp_path / "made"), "127.0.0.1@DEFAULT", "group")
    for text in (b"{}", b"{ }"):
        offsets.save(text)
    assert offsets.load() == b"{ }"
    assert unlike(tmp_path / "made", 0o700, 0o600) == {}


def test_a_name_is_never_wider_than_it_is_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the mode was to be given when the name was made")

    monkeypatch.setattr(os, "chmod", refuse)
    monkeypatch.setattr(os, "fchmod", refuse)
    monkeypatch.setattr(Path, "chmod", refuse)
    disk = RealDisk(tmp_path / "data")
    disk.create("commitlog/0", 4096)
    disk.save("config/topics.json", b"{}")
    assert unlike(tmp_path / "data", 0o700, 0o600) == {}


def test_what_was_there_keeps_its_modes_and_works(tmp_path: Path):
    root = tmp_path / "data"
    old = RealDisk(root, PERMISSIONS["all"])
    old.create("commitlog/0", 4096).write(0, b"there")
    old.save("config/topics.json", b"{}")
    old.lock("lock").release()
    root.chmod(0o777)
    before = modes(root)

    disk = RealDisk(root)
    disk.lock("lock").release()
    assert bytes(disk.open("commitlog/0").view(0, 5)) == b"there"
    disk.open("commitlog/0").write(5, b"!")
    disk.create("commitlog/1", 4096)
    assert modes(root) == {**before, "commitlog/1": 0o600}


def test_a_directory_of_a_group_keeps_its_group(tmp_path: Path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2770)
    umask = os.umask(0o077)
    try:
        make_directory(tmp_path / "shared" / "data", 0o750)
    finally:
        os.umask(umask)
    assert modes(tmp_path / "shared")["data"] == 0o2750


def test_a_file_in_the_place_of_a_directory_is_an_error(tmp_path: Path):
    (tmp_path / "data").write_text("")
    with pytest.raises(NotADirectoryError, match="move it away"):
        RealDisk(tmp_path / "data")


def warnings_of_a_start(root: Path, caplog: pytest.LogCaptureFixture, *assignments: str) -> list[str]:
    async def run() -> None:
        words = [*(f"{name}={value}" for name, value in SMALL.items()), "nameserver.port=0", "broker.port=0", *assignments]
        programs = await both(configuration({**NAME_SERVER, **BROKER}, host="127.0.0.1", assignments=words), root)
        for program in reversed(programs):
            await program.kill()

    caplog.clear()
    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    return [text for text in caplog.messages if "open to other users" in text]


def test_a_data_directory_that_others_can_read_is_reported_once(reachable: Path, caplog: pytest.LogCaptureFixture):
    root = reachable / "data"
    assert warnings_of_a_start(root, caplog) == []

    for path in (root, root / "nameserver"):
        path.chmod(0o755)
    said = warnings_of_a_start(root, caplog)
    assert len(said) == 1
    assert str(root) in said[0]
    assert "mode 0755" in said[0]
    assert f"chmod -R go-rwx {root}" in said[0]
    assert modes(root)["."] == 0o755


def test_a_directory_as_wide_as_the_setting_is_not_reported(reachable: Path, caplog: pytest.LogCaptureFixture):
    root = reachable / "data"
    root.mkdir(0o755)
    assert warnings_of_a_start(root, caplog, "readable_by=all") == []
    assert len(warnings_of_a_start(root, caplog, "readable_by=group")) == 1
    root.chmod(0o777)
    assert "g-w" not in (said := warnings_of_a_start(root, caplog, "readable_by=all"))[0]
    assert len(said) == 1


def test_a_directory_that_nobody_else_can_get_to_is_not_reported(reachable: Path, caplog: pytest.LogCaptureFixture):
    (reachable / "private").mkdir(0o700)
    (reachable / "private" / "data").mkdir(0o755)
    assert warnings_of_a_start(reachable / "private" / "data", caplog) == []


@pytest.mark.parametrize("alone", [name_server, broker])
def test_each_server_alone_reports_its_directory(reachable: Path, caplog: pytest.LogCaptureFixture, alone: object):
    async def run() -> None:
        words = [*(f"{name}={value}" for name, value in SMALL.items()), "nameserver.port=0", "broker.port=0"]
        settings = configuration({**NAME_SERVER, **BROKER}, host="127.0.0.1", assignments=words)
        await (await alone(settings, reachable)).kill()  # type: ignore[operator]

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert sum("open to other users" in text for text in caplog.messages) == 1
