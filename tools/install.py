"""Install the pinned packages of a file into the environment of this interpreter, and compile what Spark's workers import.

Progress is shown meanwhile: pip alone says nothing for minutes, or hundreds of lines.

    .venv/bin/python tools/install.py constraints.txt
"""

from __future__ import annotations

import py_compile
import re
import subprocess
import sys
import sysconfig
import time
import warnings
from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from zipfile import ZipFile

PAUSE_SECONDS = 10
"""How often it says again what it does."""
PIP = (
    "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--progress-bar", "off",
    "--config-settings=--build-option=--compression=stored", "--require-hashes", "-r",
)  # fmt: skip
"""Spark comes as source, and its wheel is unpacked a moment after it was made: uncompressed it takes half the time."""

_LARGE_MB = 20
_DOWNLOAD = re.compile(r"^ *(?:Downloading|Using cached) (?:\S*/)?(\S+) \((\d+(?:\.\d+)?) MB\)")
_BUILD = re.compile(r"^ *Building wheel for (\S+) .*: started")


def step_in(line: str) -> str:
    """Return what is worth saying of a line of pip's: a large file, what is built, that the rest is unpacked; empty for others."""
    if (found := _DOWNLOAD.match(line)) and float(found[2]) >= _LARGE_MB:
        return f"{found[1]}, {float(found[2]):.0f} MB"
    if found := _BUILD.match(line):
        return f"building {found[1]}"
    if line.startswith("Installing collected packages: "):
        return f"unpacking {line.count(',') + 1} packages"
    return ""


def install(pins: Path, pause_seconds: float = PAUSE_SECONDS) -> int:
    """Run pip; return its exit code. What it said last is shown where it failed."""
    began, last, ended = time.monotonic(), deque[str](maxlen=30), Event()
    names = re.findall(r"^([a-z0-9.-]+)==", pins.read_text(), re.M)
    doing = "looking for them"

    def say() -> None:
        print(f"  {time.monotonic() - began:3.0f} s  {doing}", flush=True)

    def repeat() -> None:
        while not ended.wait(pause_seconds):
            say()

    size = "with Spark 1.8 GB" if "pyspark" in names else "170 MB"
    print(f"installing {len(names)} packages, {size}, into {sys.prefix}:", flush=True)
    say()
    Thread(target=repeat, daemon=True).start()
    with subprocess.Popen([sys.executable, *PIP, pins], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            last.append(line)
            if step := step_in(line):
                doing = step
                say()
    ended.set()
    if pip.returncode:
        sys.stderr.write("".join(last))
    return pip.returncode


def compile_archive(archive: Path) -> int:
    """Put the compiled form of each Python file beside it into a zip file; return how many there were to compile.

    Spark's workers import PySpark from such a file, and would compile all of it at each start: 0.7 of 1.2 s.
    """
    with ZipFile(archive, "a") as files, TemporaryDirectory() as directory, warnings.catch_warnings(action="ignore"):
        names = set(files.namelist())
        sources = [name for name in names if name.endswith(".py") and f"{name}c" not in names]
        for name in sources:
            compiled = f"{files.extract(name, directory)}c"
            py_compile.compile(
                compiled[:-1],
                compiled,
                name,
                doraise=True,
                quiet=1,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
            files.write(compiled, f"{name}c")
        return len(sources)


if __name__ == "__main__":
    code = install(Path(sys.argv[1]))
    for found in Path(sysconfig.get_path("purelib")).glob("pyspark/python/lib/pyspark.zip") if code == 0 else ():
        compile_archive(found)
    sys.exit(code)
