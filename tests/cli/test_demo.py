"""`halfmoon demo` as a command; `tests/examples/test_demo.py` runs it whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def refused(*options: str) -> str:
    """Return what the demo writes to standard error before it ends with a usage error."""
    ended = subprocess.run([sys.executable, "-m", "halfmoon", "demo", *options], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (2, "")
    return ended.stderr


def test_what_cannot_be_is_a_usage_error_before_anything_begins(tmp_path: Path):
    (tmp_path / "mine").write_text("x")

    assert "must end in .png" in refused("--plot", str(tmp_path / "audit.svg"))
    assert "must be empty" in refused("--keep", str(tmp_path))
    assert "--orders" in refused("--orders", "9")
