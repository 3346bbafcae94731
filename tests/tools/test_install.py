"""Tests of `tools.install`: what it says while pip works, and what it says when pip fails."""

from __future__ import annotations

import subprocess
import sys
from zipfile import ZipFile

import pytest

from tools import install


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("  Downloading https://localhost/packages/pyspark-4.3.0.tar.gz (453.6 MB)\n", "pyspark-4.3.0.tar.gz, 454 MB"),
        ("Using cached pyarrow-26.0.1-cp311-cp311-linux.whl (55.1 MB)\n", "pyarrow-26.0.1-cp311-cp311-linux.whl, 55 MB"),
        ("  Building wheel for pyspark (pyproject.toml): started\n", "building pyspark"),
        ("  Building wheel for pyspark (pyproject.toml): still running...\n", ""),
        ("Installing collected packages: pytz, py4j, pyspark\n", "unpacking 3 packages"),
        ("  Downloading idna-3.20-py3-none-any.whl (70 kB)\n", ""),
        ("  Downloading rich-15.0.0-py3-none-any.whl (19.9 MB)\n", ""),
        ("Collecting rich==15.0.0 (from -r constraints.txt (line 7))\n", ""),
    ],
)  # fmt: skip
def test_what_takes_long_is_a_line(line, step):
    assert install.step_in(line) == step


def test_a_failure_shows_what_pip_said_last_and_silence_is_short(tmp_path, monkeypatch, capfd):
    pins = tmp_path / "pins.txt"
    pins.write_text(f"no-such-package==1 \\\n    --hash=sha256:{'0' * 64}\nanother==2 \\\n    --hash=sha256:{'0' * 64}\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    assert install.install(pins, pause_seconds=0.01) == 1

    out, err = capfd.readouterr()
    assert out.startswith("installing 2 packages, ")
    assert out.count("looking for them\n") > 1
    assert "No matching distribution found for no-such-package==1" in err


def test_workers_import_an_archive_without_compiling_it(tmp_path):
    archive = tmp_path / "pyspark.zip"
    with ZipFile(archive, "w") as files:
        files.writestr("spark/__init__.py", "")
        files.writestr("spark/worker.py", "print(__file__)")

    assert (install.compile_archive(archive), install.compile_archive(archive)) == (2, 0)

    code = f"import sys; sys.path.insert(0, {str(archive)!r}); import spark.worker"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split()[-1].endswith("spark/worker.pyc")
