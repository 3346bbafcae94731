"""What interop tests build once and keep under ``build/interop``, however many processes need it. Knows no particular program."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build" / "interop"


def run(command: list[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
    """Run a command to its end. Raises RuntimeError with the end of what it printed when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=cwd, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:2])} failed:\n{(done.stdout + done.stderr)[-3000:]}")


@contextmanager
def stamped(stamp: Path, sources: list[Path]) -> Iterator[bool]:
    """Say whether what the stamp stands for must be made from the sources; one process at a time."""
    stamp.parent.mkdir(parents=True, exist_ok=True)
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    with open(stamp.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        needed = not stamp.exists() or stamp.read_text() != wanted
        yield needed
        stamp.write_text(wanted)
