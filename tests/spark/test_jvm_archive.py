"""The archive of the JVM's classes: one writes it, nobody uses half of it, and a cache that cannot be written to hurts nobody."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from halfmoon.spark.jvm_archive import CLAIM_S, MAGIC, WHOLE_S, cache, java_options

WHOLE = MAGIC.to_bytes(4, sys.byteorder) + b"and so on"


def left(new: Path, content: bytes) -> None:
    """Leave a file that nobody writes to any more."""
    new.write_bytes(content)
    before = time.time() - WHOLE_S - 1
    os.utime(new, (before, before))


def test_one_session_has_it_written_and_those_after_it_use_it(tmp_path: Path):
    first = java_options("17.0.1", tmp_path)
    new = Path(first.split()[0].partition("=")[2])
    assert first.startswith("-XX:ArchiveClassesAtExit=")
    assert java_options("17.0.1", tmp_path) == ""

    new.write_bytes(WHOLE)
    assert java_options("17.0.1", tmp_path) == ""  # still written to
    left(new, WHOLE)
    used = java_options("17.0.1", tmp_path)
    assert f"-XX:SharedArchiveFile={new.with_suffix('.jsa')} " in used
    assert new.with_suffix(".jsa").read_bytes() == WHOLE


def test_half_an_archive_is_thrown_away_and_written_again(tmp_path: Path):
    first = java_options("17.0.1", tmp_path)
    left(Path(first.split()[0].partition("=")[2]), b"\0\0\0\0")

    assert java_options("17.0.1", tmp_path) == first


def test_another_java_has_another_one(tmp_path: Path):
    assert java_options("17.0.1", tmp_path).split()[0] != java_options("17.0.2", tmp_path).split()[0]


def test_a_session_that_never_wrote_it_is_forgotten(tmp_path: Path):
    assert java_options("17.0.1", tmp_path)
    (claim,) = tmp_path.glob("*.claim")
    before = time.time() - CLAIM_S - 1
    os.utime(claim, (before, before))

    assert java_options("17.0.1", tmp_path)


def test_without_a_place_to_write_there_is_none(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("")

    assert java_options("17.0.1", tmp_path / "file") == ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache() == tmp_path / "halfmoon"
