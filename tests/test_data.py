"""What `import halfmoon.data` gives: each public name when it is first asked for, without PySpark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from halfmoon import data


@pytest.mark.parametrize("name", data.__all__)
def test_each_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(data, name).__doc__
    assert name in dir(data)


def test_nothing_of_spark_is_loaded() -> None:
    names = ", ".join(data.__all__)
    code = f"import sys; from halfmoon.data import {names}; print([name for name in sys.modules if 'spark' in name])"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
