"""Archive of the JVM's classes: a local session takes a third less processor time until its first result. Optional.

The first session of a version of Spark and Java has its JVM write the archive when it ends, in the background (some seconds, about
160 MB in the user's cache directory); those after it use it. A JVM that finds an archive unfit goes on without.
"""

from __future__ import annotations

import os
import sys
import time
from hashlib import sha256
from pathlib import Path

import pyspark

CLAIM_S = 900.0
"""Time that a JVM has to write the archive; then another one may try."""

WHOLE_S = 30.0
"""Age of the last write from which a file is complete, or abandoned."""

MAGIC = 0xF00BABA8
"""First bytes of an archive; the JVM writes them last. Follows CDS_DYNAMIC_ARCHIVE_MAGIC (OpenJDK 17)."""

QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def cache() -> Path:
    """Return the directory of archives."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "halfmoon"


def java_options(java: str, place: Path) -> str:
    """Return options for the JVM: to use the archive, to write it, or none. ``java`` is the output of ``java -version``."""
    key = sha256(f"{java}\n{Path(pyspark.__file__).parent}".encode()).hexdigest()[:16]
    archive = place / f"spark-{pyspark.__version__}-{key}.jsa"
    try:
        _adopt(archive)
        if archive.exists():
            return f"-Xshare:auto -XX:SharedArchiveFile={archive} {QUIET}"
        if " " in str(archive) or not _claimed(archive):
            return ""
    except OSError:  # without a cache the session only starts more slowly
        return ""
    return f"-XX:ArchiveClassesAtExit={_new(archive)} {QUIET}"


def _new(archive: Path) -> Path:
    return archive.with_suffix(".new")


def _claim(archive: Path) -> Path:
    return archive.with_suffix(".claim")


def _adopt(archive: Path) -> None:
    """Give a new archive its name once the JVM has written it; remove what a killed one left."""
    new = _new(archive)
    if not new.exists() or time.time() - new.stat().st_mtime <= WHOLE_S:
        return
    with new.open("rb") as file:
        whole = int.from_bytes(file.read(4), sys.byteorder) == MAGIC
    if whole:
        new.replace(archive)
    else:
        new.unlink(missing_ok=True)
    _claim(archive).unlink(missing_ok=True)


def _claimed(archive: Path) -> bool:
    """Return whether this process is the one whose JVM writes."""
    claim = _claim(archive)
    claim.parent.mkdir(parents=True, exist_ok=True)
    if claim.exists() and time.time() - claim.stat().st_mtime > CLAIM_S:
        claim.unlink(missing_ok=True)
    try:
        claim.open("x").close()
    except FileExistsError:
        return False
    return True
