"""numpy is loaded when somebody asks, and is not needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHECK = """
import sys
if sys.argv[1] == "without":
    sys.modules["numpy"] = None
from halfmoon import arrays
print("numpy" in sys.modules and sys.modules["numpy"] is not None, arrays.np is None)
arrays.load()
arrays.load()
print(arrays.np is None)
"""


@pytest.mark.parametrize(("numpy", "printed"), [("with", "False True\nFalse\n"), ("without", "False True\nTrue\n")])
def test_numpy_comes_with_the_first_call_where_it_is_installed(numpy: str, printed: str) -> None:
    run = subprocess.run([sys.executable, "-c", CHECK, numpy], check=True, capture_output=True, text=True)
    assert run.stdout == printed
