"""Tests of `tools.available`: which files can be checked without some packages."""

from __future__ import annotations

import pytest

from tests.house import ROOT
from tests.packaging.test_wheel import needed, pins
from tools import available

TREE = {
    "src/halfmoon/__init__.py": "",
    "src/halfmoon/plain.py": "import json\ndef lake():\n    from halfmoon import lake",
    "src/halfmoon/lake.py": "def open():\n    import no_such_lake",
    "src/halfmoon/table.py": "import no_such_table.rows",
    "tests/test_plain.py": "from halfmoon import plain",
    "tests/test_lake.py": "from halfmoon import lake",
    "tests/rows/conftest.py": "from halfmoon.table import Table",
    "tests/rows/test_rows.py": "def test(rows): pass",
    "tests/test_later.py": "def test():\n    import no_such_table",
}


@pytest.fixture
def tree(tmp_path):
    for file, text in TREE.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    return tmp_path


def test_a_program_lacks_what_is_loaded_with_it(tree):
    (tree / "tools").mkdir()
    (tree / "tools" / "write.py").write_text("from halfmoon import plain\nfrom halfmoon.table import rows")
    (tree / "tools" / "read.py").write_text("from halfmoon import plain")
    assert available.lacks("tools/write.py", tree) == ["no_such_table"]
    assert available.lacks("tools/read.py", tree) == []


def test_a_source_needs_what_it_imports_and_a_test_what_its_modules_load(tree):
    assert available.missing(TREE, tree) == {
        "src/halfmoon/lake.py": ["no_such_lake"],
        "src/halfmoon/table.py": ["no_such_table"],
        "tests/test_lake.py": ["no_such_lake"],  # loads without it, but tests what needs it
        "tests/rows/conftest.py": ["no_such_table"],
        "tests/rows/test_rows.py": ["no_such_table"],
        "tests/test_later.py": ["no_such_table"],
    }


def test_with_everything_installed_nothing_is_left_out(capsys):
    assert available.main([]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_light_set_up_is_pinned_as_for_development():
    light, everything = pins("constraints-light.txt"), pins("constraints.txt")

    assert {*light} == needed("halfmoon[check,console]", "hatchling", "editables") - {"halfmoon"}
    assert all(everything[name] == lines for name, lines in light.items())
    assert not {"pyspark", "django", "sqlalchemy", "playwright"} & {*light}
    assert (ROOT / "constraints-light.txt").stat().st_size < 100_000
