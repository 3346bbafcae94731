"""Runs consumers in a process of their own, and again whenever a source file changes, for development.

Opens no file, and imports nothing of the user's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from halfmoon.errors import UsageError

FILES_MAX = 20_000
SUFFIXES = (".py", ".toml", ".xml")
PASSED_OVER = frozenset(("__pycache__", "node_modules", "site-packages", "venv"))
"""Directories that are not looked into, nor are those whose names begin with a dot."""
LOOK_S = 0.4
SETTLE_LOOKS = 10
"""How often a change is looked at again until it is over: tools write many files one after the other."""

Times = dict[str, tuple[int, int]]


def times_of(root: Path) -> Times:
    """Return time of change (ns) and size of each source file below a directory. Raises UsageError for more than `FILES_MAX`."""
    found: Times = {}
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if name not in PASSED_OVER and not name.startswith(".")]
        for name in files:
            if not name.endswith(SUFFIXES):
                continue
            try:
                state = os.stat(path := os.path.join(directory, name))
            except OSError:  # it is gone again
                continue
            found[path] = state.st_mtime_ns, state.st_size
            if len(found) > FILES_MAX:
                raise UsageError(f"more than {FILES_MAX} source files below {root}: run this in the directory of your program")
    return found


def keep_running(command: list[str], root: Path, *, stop_s: float, say: Callable[[str], None]) -> int:
    """Run a command until SIGTERM or SIGINT, anew whenever a source file below a directory changes; return its last exit code.

    One that ends by itself, as on an error in the source, is run again after the next change. It is ended by SIGTERM, and killed
    after ``stop_s`` or at a second signal. ``say`` tells people what happens. The handlers of both signals stay.
    """
    heard: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: heard.append(number))
    while True:
        known, process = times_of(root), subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
        try:
            changed = _wait(process, known, root, heard, say)
        finally:
            end_s = time.monotonic() + stop_s
            process.terminate()
            while process.poll() is None and time.monotonic() < end_s and len(heard) < 2:
                time.sleep(LOOK_S / 8)
            process.kill()
            process.wait()
        if heard:
            return process.returncode if process.returncode >= 0 else 128 - process.returncode
        say(f"{os.path.relpath(changed, root)} changed: starting again")


def _wait(process: subprocess.Popen[bytes], known: Times, root: Path, heard: list[int], say: Callable[[str], None]) -> str:
    """Wait for a change and return a file that did; empty where a signal was heard."""
    running = True
    while not heard:
        time.sleep(LOOK_S)
        if running and (code := process.poll()) is not None:
            running = False
            say(f"the consumers ended (exit code {code}); waiting for a change of a source file")
        now = times_of(root)
        for _ in range(SETTLE_LOOKS):
            if now == known:
                break
            time.sleep(LOOK_S / 4)
            if (later := times_of(root)) == now:
                return min(path for path in {*known, *now} if known.get(path) != now.get(path))
            now = later
    return ""
