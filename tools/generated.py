"""Generated file: written, or compared with the text of its generator where ``--check`` is given."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path


def linked(text: str) -> str:
    """Return a text of the package with links to the pages that it names by their command."""
    return re.sub(r"halfmoon docs ([a-z-]+)", r"[\1](\1.md)", text)


def write_or_check(path: Path, text: str, arguments: Sequence[str]) -> int:
    """Write the file, or with ``--check`` report a stale one on standard error; return the exit code."""
    if "--check" not in arguments:
        path.write_text(text)
        return 0
    stale = not path.exists() or path.read_text() != text
    if stale:
        print(f"{path.name} is stale: run make docs", file=sys.stderr)
    return int(stale)
