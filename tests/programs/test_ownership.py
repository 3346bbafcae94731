"""Commands of root in a directory of somebody else: they act as its owner, and no link there leads them to what is root's."""

from __future__ import annotations

import ast
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from halfmoon.cli.main import main
from halfmoon.programs.ownership import as_owner_of
from halfmoon.runtime.files.permissions import make_directory, ruler_of
from tests.house import ROOT

OWNER, GROUP = 12345, 23456
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root works in directories of others")


@pytest.fixture
def place():
    """A directory of another user, which that user can get to; beside it is one of root's."""
    above = Path(tempfile.mkdtemp(dir="/tmp"))
    above.chmod(0o711)
    theirs, roots = above / "theirs", above / "roots"
    theirs.mkdir()
    os.chown(theirs, OWNER, GROUP)
    roots.mkdir(0o700)
    (roots / "file").write_bytes(b"secret")
    (roots / "file").chmod(0o600)
    (roots / "folder").mkdir()
    yield theirs
    shutil.rmtree(above)


def facts_below(path: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return owners, modes and contents of all that is root's, below a directory."""
    found = {}
    for each in [path, *path.rglob("*")]:
        facts = each.lstat()
        found[str(each)] = facts.st_uid, facts.st_gid, facts.st_mode, each.read_bytes() if each.is_file() else b""
    return found


def add_user(data: Path) -> int:
    return main(["console", "user", "add", "ada", "--role", "viewer", "--data", str(data)])


def test_what_root_makes_belongs_to_the_owner_of_the_directory(place):
    assert add_user(place / "data") == 0

    made = [path.lstat() for path in place.rglob("*")]
    assert len(made) == 4
    assert {(each.st_uid, each.st_gid) for each in made} == {(OWNER, GROUP)}
    assert (os.geteuid(), os.getegid()) == (0, 0)


@pytest.mark.parametrize("name", ["data", "data/console", "data/console/console.db", "data/console/console.db-journal"])
@pytest.mark.parametrize("target", ["file", "folder", "missing"])
def test_no_link_leads_a_command_of_root_to_what_is_roots(place, name, target):
    roots = place.parent / "roots"
    link = place / name
    link.parent.mkdir(parents=True, exist_ok=True)
    for each in place.rglob("*"):
        os.chown(each, OWNER, GROUP)
    link.symlink_to(roots / target)
    os.chown(link, OWNER, GROUP, follow_symlinks=False)
    before = facts_below(roots)

    add_user(place / "data")

    assert facts_below(roots) == before


def test_who_rules_over_a_name_is_the_first_that_is_not_root_on_the_way_to_it(place):
    by_root, by_them = place.parent / "by_root", place / "by_them"
    by_root.symlink_to("theirs/deeper")
    by_them.symlink_to("/etc")
    os.chown(by_them, OWNER, GROUP, follow_symlinks=False)
    (place / "deeper").mkdir()  # root's, below theirs

    def owner(path: Path) -> int:
        found = ruler_of(path)
        return 0 if found is None else found.st_uid

    assert [owner(path) for path in (place, place / "deeper" / "new", by_root, by_root / "x", by_them, by_them / "x")] == [
        OWNER
    ] * 6
    assert [owner(path) for path in (place.parent, Path("/etc/hostname"), place / ".." / "roots")] == [0, 0, OWNER]
    (place.parent / "round").symlink_to("round")
    assert owner(place.parent / "round") == 0


def test_root_is_root_again_where_a_command_fails(place):
    before, seen = (os.geteuid(), os.getegid(), os.getgroups()), []
    with suppress(ValueError), as_owner_of(place):
        seen.append((os.geteuid(), os.getegid(), os.getgroups()))
        raise ValueError("wrong")

    assert (seen, (os.geteuid(), os.getegid(), os.getgroups())) == ([(OWNER, GROUP, [GROUP])], before)


def test_a_directory_gets_its_mode_through_a_descriptor(place, monkeypatch):
    real = os.mkdir

    def swapped(path, mode=0o777, **more):
        real(path, mode, **more)
        os.rmdir(path)
        os.symlink(place.parent / "roots" / "folder", path)

    before = facts_below(place.parent / "roots")
    umask = os.umask(0o777)
    monkeypatch.setattr(os, "mkdir", swapped)
    try:
        with pytest.raises(OSError, match=r"directory|symbolic"):
            make_directory(place / "data")
    finally:
        os.umask(umask)
    assert facts_below(place.parent / "roots") == before


def test_no_file_is_opened_for_writing_by_a_link_and_no_owner_or_mode_changed_by_a_name():
    found = []
    for path in (ROOT / "src" / "halfmoon").rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            text = ast.unparse(call)
            name = ast.unparse(call.func)
            writes = name == "os.open" and ("O_RDWR" in text or "O_WRONLY" in text) and "os.devnull" not in text
            if name.endswith((".chmod", ".chown", ".lchown")) or (
                writes and not any(flag in text for flag in ("O_EXCL", "O_NOFOLLOW", "NO_LINKS"))
            ):
                found.append(f"{path.relative_to(ROOT)}:{call.lineno}: {text}")
    assert found == []
