"""Tests of `tools.affected`: which tests a change affects, and in which order they run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.house import ROOT, name_of, sources
from tools.affected import affected, in_order

TREE = {
    "src/halfmoon/__init__.py": "",
    "src/halfmoon/ground.py": "",
    "src/halfmoon/store.py": "from halfmoon.ground import Ground",
    "src/halfmoon/broker/__init__.py": "",
    "src/halfmoon/broker/pulls.py": "import halfmoon.store",
    "src/halfmoon/apart.py": "",
    "tests/test_ground.py": "",
    "tests/test_store.py": "import pytest\nfrom halfmoon.store import Store",
    "tests/broker/test_pulls.py": "from halfmoon.broker import pulls",
    "tests/test_way.py": "from tests.shared import ready\nfrom halfmoon import broker",
    "tests/shared.py": "from halfmoon.ground import Ground",
    "tests/test_apart.py": "from halfmoon.apart import Apart",
}


@pytest.fixture
def tree(tmp_path):
    for file, text in TREE.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    return tmp_path


def test_tests_are_as_far_from_a_change_as_their_imports(tree):
    distances, unknown = affected(["src/halfmoon/ground.py"], tree)
    assert distances == {
        "tests/test_ground.py": 0, "tests/test_store.py": 1, "tests/broker/test_pulls.py": 2, "tests/test_way.py": 2
    }  # fmt: skip
    assert unknown == []


def test_the_nearest_tests_run_first_behind_those_of_the_whole_tree():
    order = in_order({"tests/test_b.py": 1, "tests/test_imports.py": 1, "tests/test_a.py": 2, "tests/test_c.py": 0})
    assert order[3:] == ["tests/test_c.py", "tests/test_b.py", "tests/test_a.py"]
    assert order.count("tests/test_imports.py") == 1


def test_a_changed_test_is_affected_itself(tree):
    assert affected(["tests/test_way.py"], tree)[0] == {"tests/test_way.py": 0}


def test_a_file_that_is_no_python_stands_for_the_package_it_lies_in(tree):
    distances, unknown = affected(["src/halfmoon/broker/page.html"], tree)
    assert distances == {"tests/test_way.py": 1}
    assert unknown == []


def test_a_file_that_nothing_imports_is_tested_by_the_tests_beside_it(tree):
    (tree / "src/halfmoon/broker/__main__.py").touch()
    distances, _ = affected(["src/halfmoon/broker/__main__.py"], tree)
    assert distances == {"tests/broker/test_pulls.py": 1}


def test_a_change_without_known_tests_is_named(tree):
    assert affected(["LICENSE"], tree) == ({}, ["LICENSE"])


def test_every_source_file_has_a_near_test():
    modules = [name_of(path) for path in sources() if path.name != "__init__.py"]
    assert [path for path in modules if min(affected([path])[0].values(), default=9) > 2] == []


def test_no_test_starts_after_the_given_time_and_the_last_line_counts_them():
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--seconds", "0", "tests/test_limits.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "tests did not start, as the time is up" in run.stdout
    assert " passed" not in run.stdout
