"""A backup's directory is replaced in one step; whatever a killed run leaves is ended by the next; nothing else is removed."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from halfmoon.errors import StoreLocked, UsageError
from halfmoon.programs.replacing import MANIFEST, BackupPlace, Manifest, place_of, write_manifest

OTHERS = "neither empty nor a backup"


@pytest.fixture
def place(tmp_path: Path) -> BackupPlace:
    """A place with no backup yet."""
    return place_of(tmp_path / "store", tmp_path / "backup")


def backup(directory: Path, number: int) -> None:
    """Make what looks like a backup, with a number that tells it from others."""
    (directory / "commitlog").mkdir(parents=True)
    (directory / "commitlog" / f"{number:020d}").write_bytes(b"1")
    write_manifest(directory, Manifest(True, number, False))


def names(place: BackupPlace) -> list[str]:
    return sorted(path.name for path in place.target.parent.iterdir())


@pytest.mark.parametrize("steps", range(9))
def test_a_run_that_is_killed_leaves_a_whole_backup_and_the_next_one_ends_it(place: BackupPlace, monkeypatch, steps: int):
    left = steps

    def killed_later(original):
        def step(*args, **kwargs):
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return original(*args, **kwargs)

        return step

    backup(place.target, 1)
    backup(place.new, 2)
    with monkeypatch.context() as patch:
        for name in ("rename", "unlink", "rmdir"):
            patch.setattr(Path, name, killed_later(getattr(Path, name)))
        patch.setattr(shutil, "rmtree", killed_later(shutil.rmtree))
        with suppress(KeyboardInterrupt):
            place.replace()
    assert (left < 0) == (steps < 7), "every step was the last once"

    there = place.prepare()
    assert there is not None
    assert there.taken_ms in (1, 2)
    assert (place.target / "commitlog" / f"{there.taken_ms:020d}").exists()
    assert names(place) == ["backup"]


def test_a_second_run_to_the_same_target_is_kept_out(place: BackupPlace):
    with place.taken(), pytest.raises(StoreLocked, match="another backup"), place.taken():
        pass
    with place.taken():
        pass


@pytest.mark.parametrize("at", ["target", "new", "old"])
def test_what_is_no_backup_or_was_started_on_is_left_alone(place: BackupPlace, at: str):
    directory = getattr(place, at)
    backup(directory, 1)
    (directory / "lock").write_bytes(b"lock")
    with pytest.raises(UsageError, match="a broker was started on"):
        place.prepare()
    (directory / "lock").unlink()
    (directory / MANIFEST).write_bytes(b'{"complete": true, "tak')
    with pytest.raises(UsageError, match="cannot be read"):
        place.prepare()
    (directory / MANIFEST).unlink()
    with pytest.raises(UsageError, match=OTHERS):
        place.prepare()
    assert (directory / "commitlog").exists()


def test_names_that_others_use_are_not_touched(place: BackupPlace):
    backup(place.target, 1)
    for name in ("backup.previous", "backup.partial"):
        backup(place.target.with_name(name), 7)
    place.prepare()
    backup(place.new, 2)
    place.replace()
    assert names(place) == ["backup", "backup.partial", "backup.previous"]


@pytest.mark.parametrize("name", [MANIFEST, f"{MANIFEST}.tmp", ""])
def test_a_copy_that_was_hardly_begun_is_in_nobodys_way(place: BackupPlace, name: str):
    place.new.mkdir()
    if name == MANIFEST:
        write_manifest(place.new, Manifest(False, 1, False))
    elif name:
        (place.new / name).write_bytes(b"{")
    assert place.prepare() is None
    assert names(place) == []


def test_an_older_backup_that_a_killed_run_had_set_aside_gets_its_name_back(place: BackupPlace):
    backup(place.old, 1)
    place.target.mkdir()
    there = place.prepare()
    assert there is not None
    assert there.taken_ms == 1
    assert names(place) == ["backup"]


def test_a_rename_that_fails_leaves_the_older_one_its_name(place: BackupPlace):
    backup(place.target, 1)
    with pytest.raises(FileNotFoundError):
        place.replace()  # there is no new one
    assert names(place) == ["backup"]


@pytest.mark.parametrize("source", ["backup", "backup/x", ".", ".backup.halfmoon-old", ".backup.halfmoon-new/x"])
def test_a_source_that_would_be_removed_is_refused(tmp_path: Path, source: str):
    with pytest.raises(UsageError, match="one inside the other"):
        place_of(tmp_path / source, tmp_path / "backup")


def test_the_root_is_no_target(tmp_path: Path):
    with pytest.raises(UsageError, match="cannot be replaced"):
        place_of(tmp_path, Path("/"))
