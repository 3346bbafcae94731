"""What a server asks the C library's allocator for."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import sys
from resource import RUSAGE_SELF, getrusage
from halfmoon.runtime.server.allocator import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()

def turn():
    return [bytes(100_000) for _ in range(16)]

turn()
before = getrusage(RUSAGE_SELF).ru_minflt
for _ in range(100):
    turn()
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have their own ways")
def test_what_a_turn_freed_is_there_for_the_next_turn() -> None:
    faults = {
        how: int(subprocess.run([sys.executable, "-c", FAULTS, how], check=True, capture_output=True, text=True).stdout)
        for how in ("plain", "kept")
    }
    assert faults["kept"] < 200 < 2_000 < faults["plain"]
