"""A file system without room: an error with a path, never a signal. Real small ones are mounted where the tests may do that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon.runtime.files import disk as disk_module
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.files.filesystems import PAGE_BYTES, Kind


def mounted(*words: str, on: Path, options: str = "") -> Iterator[Path]:
    """Mount a file system while the generator waits, then mount it again with ``options``; skip where we may not."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root mounts a file system: what a full one does is NOT tested here")
    on.mkdir()
    made = subprocess.run(["mount", *words, str(on)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here, what a full one does is NOT tested: {made.stderr.strip()}")
    try:
        if options:
            subprocess.run(["mount", "-o", options, str(on)], check=True)
        yield on
    finally:
        subprocess.run(["umount", "-l", str(on)], check=True)


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    yield from mounted("-t", "tmpfs", "-o", "size=4m", "none", on=tmp_path / "tmpfs")


@pytest.fixture
def small_blocks(tmp_path: Path) -> Iterator[Path]:
    """Ext4 with blocks of 1 KiB."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4: ext4 with blocks of 1 KiB is NOT tested")
    image = tmp_path / "image"
    image.touch()
    os.truncate(image, 24 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "1024", "-m", "0", str(image)], check=True)
    yield from mounted("-o", "loop", str(image), on=tmp_path / "ext4")


def fill(root: Path, leave: int = 0) -> None:
    """Take all room of a file system but some bytes."""
    with (root / "ballast").open("wb", buffering=0) as ballast:
        for size in (65536, 1024):
            try:
                while True:
                    if ballast.write(b"x" * size) < size:
                        break
            except OSError:
                pass
        if leave:
            ballast.truncate(max(0, ballast.tell() - leave))


SCRIPT = """
import sys
from halfmoon.runtime.files.disk import RealDisk
disk = RealDisk(sys.argv[1])
{body}
print("alive")
"""


def survives(root: Path, body: str) -> str:
    ran = subprocess.run([sys.executable, "-c", SCRIPT.format(body=body), str(root)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, f"ended with {ran.returncode} (-7 is SIGBUS): {ran.stderr}"
    assert "alive" in ran.stdout
    return ran.stdout


READ_HOLES = """
file = disk.open("queue")
assert bytes(file.view(0, 3)) == b"abc"
for at in range(0, file.size - 20, 99_980):
    assert not any(bytes(file.view(at, 20))[3 if at == 0 else 0:]), at
assert not any(file.view(1 << 20, 1 << 20))
assert 0 < file.data_end() <= 64 * 1024
"""


def test_a_hole_is_read_on_a_full_tmpfs(tmpfs: Path):
    RealDisk(tmpfs).create("queue", 6_000_000).write(0, b"abc")
    fill(tmpfs)
    survives(tmpfs, READ_HOLES)


@pytest.mark.parametrize("leave", [0, 1024, 2048, 3072, 5000, 40_000])
@pytest.mark.parametrize("where", ["tmpfs", "small_blocks"])
def test_writes_end_in_an_error_on_a_full_disk(where: str, leave: int, request: pytest.FixtureRequest):
    root = request.getfixturevalue(where)
    file = RealDisk(root).create("log", 8 << 20)
    file.write(0, b"abc")
    fill(root, leave)
    out = survives(
        root,
        """
file, at, refused = disk.open("log"), 0, None
while refused is None:
    try:
        file.write(at, b"r" * 700)
        at += 700
    except OSError as exc:
        refused = exc
print("refused", refused.errno, refused.filename)
assert bytes(file.view(0, at)) == b"r" * at
""",
    )
    assert f"refused 28 {root / 'log'}" in out


OPEN = """
from pathlib import Path
from halfmoon.errors import StoreNotWritable
from halfmoon.instant import instant
from halfmoon.store import Store, StoreSettings
sizes = dict(commit_log_file_bytes=1 << 20, queue_file_bytes=600_000, hash_slots=5000, index_entries_max=20_000)
store = Store.open(disk, StoreSettings(**sizes), bytes(8), instant(1_700_000_000_000))
draft = (b"b" * 700, b"UNIQ_KEY\\x01abc\\x02", 0, 0, 1, bytes(8), 0, 0, 0)
"""


@pytest.mark.parametrize("where", ["tmpfs", "small_blocks"])
def test_a_store_lives_through_a_full_disk_and_starts_on_it_for_reading(where: str, request: pytest.FixtureRequest):
    root = request.getfixturevalue(where)
    out = survives(
        root,
        OPEN
        + """
import os
count = [0, 0]
try:
    while True:
        for queue in (0, 1):
            store.append("t", queue, [draft], 1_700_000_000_000)
            count[queue] += 1
        store.query("t", "abc", 1, 0, 1)
except StoreNotWritable as exc:
    print("alive, refused:", exc, flush=True)
print(count, flush=True)
os._exit(0)
""",
    )
    assert "refused:" in out
    fill(root)
    assert os.statvfs(root).f_bavail * os.statvfs(root).f_frsize < 4096
    out_again = survives(
        root,
        OPEN
        + """
print([store.queue_max("t", queue) for queue in (0, 1)])
assert store.read("t", 0, 0, 32).count > 0
store.query("t", "abc", 1, 0, 1)
assert "full" in store.refusal, store.refusal
try:
    store.append("t", 0, [draft], 1_700_000_000_000)
except StoreNotWritable:
    print("for reading only")
Path(sys.argv[1], "ballast").unlink()
now = 1_700_000_000_000
for step in range(10):
    store.tick(instant(now := now + 10_000))
    for work in store.work():
        work.done(work.run(), instant(now))
assert disk.exists("config/spare"), "the room is held again"
""",
    )
    assert out.splitlines()[-1] == out_again.splitlines()[0]
    assert "for reading only" in out_again


def test_what_is_reserved_is_whole_pages(tmp_path: Path):
    disk = RealDisk(tmp_path)
    file = disk.create("log", 10 << 20)
    for size in (1, 17_000, 100_001, 1 << 20):
        file.write(0, b"x" * size)
        assert file._reserved % PAGE_BYTES == 0


def test_where_blocks_move_when_they_are_written_nothing_is_written_through_a_mapping(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(disk_module, "kind_of", lambda device: Kind(keeps=False, reads_holes=False))
    file = RealDisk(tmp_path).create("log", 100_000)
    file.write(0, b"small")
    file.write_numbers([8, 12], [7, -1])

    class Guarded:
        def __setitem__(self, *_: object) -> None:
            raise AssertionError("written through the mapping")

    file.view(0, 1)
    mapping = file._mapping
    assert mapping is not None
    file._mapping = mapping._replace(view=Guarded())  # type: ignore[arg-type]
    file.write(20, b"more")
    file.write_numbers([16], [9])
    file._mapping = mapping
    assert bytes(file.view(0, 24)).hex() == "736d616c6c000000" + "00000007" + "ffffffff" + "00000009" + b"more".hex()
