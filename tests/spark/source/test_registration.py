"""What Spark finds of us by itself, where something that we need is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOOKUP = """
import io, sys
import pyspark.sql.datasource
exec(sys.argv[1])
from pyspark.sql.worker import lookup_data_sources
from pyspark.serializers import read_int, CPickleSerializer
out = io.BytesIO()
lookup_data_sources._main(io.BytesIO(), out)
out.seek(0)
for _ in range(read_int(out)):
    name = out.read(read_int(out)).decode()
    try:
        CPickleSerializer()._read_with_length(out)({}).schema()
    except Exception as exc:
        print(name, type(exc).__name__, exc)
    else:
        print(name, "ok")
"""
OTHER = """
from pyspark.sql.datasource import DataSource

class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "other"

    def schema(self):
        return "number int"
"""


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("sys.modules['pyarrow'] = None", "import of pyarrow halted"),
        ("del pyspark.sql.datasource.DataSourceStreamArrowWriter", "cannot import name 'DataSourceStreamArrowWriter'"),  # older
        ("import pyarrow; del pyarrow.schema", "module 'pyarrow' has no attribute 'schema'"),
    ],
)
def test_where_something_is_missing_other_python_sources_are_found_and_ours_says_what(broken: str, reason: str, tmp_path: Path):
    Path(tmp_path, "pyspark_other.py").write_text(OTHER)

    command = [sys.executable, "-c", LOOKUP, broken]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert found.stderr == ""
    assert "other ok\n" in found.stdout
    assert f"halfmoon ImportError the source halfmoon cannot be used here: {reason}" in found.stdout
    assert "pip install 'halfmoon[spark]'" in found.stdout
