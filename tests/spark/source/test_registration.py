"""What Spark finds of us by itself, where something that we need is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOOKUP = """
import io, sys
sys.modules["pyarrow"] = None
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


def test_where_something_is_missing_other_python_sources_are_found_and_ours_says_what(tmp_path: Path):
    Path(tmp_path, "pyspark_other.py").write_text(OTHER)

    found = subprocess.run([sys.executable, "-c", LOOKUP], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert found.stderr == ""
    assert "other ok\n" in found.stdout
    assert "halfmoon ImportError the source halfmoon cannot be used here: import of pyarrow halted" in found.stdout
    assert "pip install 'halfmoon[spark]'" in found.stdout
