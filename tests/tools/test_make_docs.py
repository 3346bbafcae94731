"""``make docs`` runs every generator, as the Makefile starts it."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_make_docs_starts_every_generator_and_finds_nothing_stale():
    ran = subprocess.run(["make", "--no-print-directory", "docs", "ARGS=--check"], cwd=ROOT, capture_output=True, text=True)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    tools = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tools").glob("generate_*.py"))]
    assert ran.stdout.splitlines()[-len(tools) :] == tools
