"""Checks of this machine: Python, the compiled extension, Java, files, disk. Asks no server."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from halfmoon import __version__
from halfmoon.cli.doctor.check import NOTE, OK, PROBLEM, WARNING, Check
from halfmoon.documentation import see
from halfmoon.hot import NATIVE
from halfmoon.results import DISK_WARNING
from halfmoon.shown.texts import size_text

JAVA_MIN, JAVA_WAIT_S = 17, 20
FILES_MIN = 20_000
DISK_NOTICED = 0.75
"""Share of a disk from which on brokers delete expired files at any hour. Follows diskMaxUsedSpaceRatio."""


def machine(data: Path) -> Iterator[Check]:
    """Yield the checks of this machine; ``data`` is the data directory of servers."""
    yield Check("Python", OK, f"{platform.python_implementation()} {platform.python_version()}, halfmoon {__version__}")
    yield _extension()
    yield _java()
    yield _files()
    yield _disk(data)


def _extension() -> Check:
    if NATIVE:
        return Check("extension", OK, f"halfmoon-native {NATIVE}")
    if os.environ.get("HALFMOON_NATIVE") == "0":
        return Check("extension", WARNING, "HALFMOON_NATIVE=0 switches halfmoon-native off", "unset HALFMOON_NATIVE")
    try:
        text = f"halfmoon-native {version('halfmoon-native')} belongs to another version of Halfmoon, so that Python does its work"
        return Check("extension", WARNING, text, "install the wheel of halfmoon-native that was built with this one")
    except PackageNotFoundError:
        remedy = f"for more throughput, install the wheel of halfmoon-native; see {see('install')}"
        return Check("extension", NOTE, "halfmoon-native is not installed: everything works, slower", remedy)


def _java() -> Check:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = f"install Java {JAVA_MIN} or newer, or set JAVA_HOME"
    if java is None:
        return Check("Java", NOTE, "not found; only Spark needs it", remedy)
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_WAIT_S, check=True)
    except (OSError, subprocess.SubprocessError) as exc:
        return Check("Java", WARNING, f"{java} does not run: {exc}; only Spark needs it", remedy)
    found = re.search(r'version "(\d+)(?:\.(\d+))?', ran.stderr + ran.stdout)
    found_version = 0 if found is None else int(found[2] or 0) if found[1] == "1" else int(found[1])
    if found_version < JAVA_MIN:
        return Check("Java", WARNING, f"{java} is version {found_version or 'unknown'}, and Spark needs {JAVA_MIN}", remedy)
    return Check("Java", OK, f"version {found_version} at {java}")


def _files() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        text = f"a process may open {hard:,} files; a broker with thousands of connections needs {FILES_MIN:,}"
        return Check(
            "open files", WARNING, text, f"raise the hard limit: ulimit -Hn {FILES_MIN}, or LimitNOFILE of the systemd unit"
        )
    return Check("open files", OK, "unlimited" if hard == resource.RLIM_INFINITY else f"a process may open {hard:,}")


def _disk(data: Path) -> Check:
    """Check the file system of the data directory, or of its nearest parent that exists."""
    # Path.exists raises where a parent may not be searched.
    there = next(path for path in (data.absolute(), *data.absolute().parents) if os.path.exists(path))
    usage = shutil.disk_usage(there)
    share = usage.used / (usage.used + usage.free) if usage.used + usage.free else 1.0
    text = f"{share:.0%} used, {size_text(usage.free)} free at {there}"
    remedy = "free space, or give another directory: --data DIR"
    if not os.access(there, os.W_OK):
        return Check("disk", PROBLEM, f"{there} cannot be written", remedy)
    if share >= DISK_WARNING:
        return Check("disk", PROBLEM, f"{text}: brokers refuse sends from {DISK_WARNING:.0%} on", remedy)
    return Check("disk", WARNING if share >= DISK_NOTICED else OK, text, remedy if share >= DISK_NOTICED else "")
