"""What runs in one process: all tests of a file, those that share a server or a Spark session; and what comes first."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import run

import pytest

from tests.dealing import FIRST, MAY_BE_LATE, SLOW, TOGETHER, left_out, rank, together


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("test_our_client.py::test_a[5.3.3-JSON]", "test_our_client.py::test_b[5.3.3]", True),
        ("test_our_client.py::test_a[5.3.3-JSON]", "test_our_client.py::test_a[4.9.7-JSON]", False),
        ("test_our_client.py::test_a[ours]", "test_our_transactions.py::test_a[ours]", False),
        ("test_tx_apache.py::test_a[4.9.7 slow]", "test_tx_apache.py::test_b[4.9.7 slow]", True),
        ("test_same_answers.py::test_a[JSON-a send]", "test_same_answers.py::test_b[JSON-a pull---]", True),
        ("test_same_answers.py::test_a[JSON-a send]", "test_same_answers.py::test_a[ROCKETMQ-a send]", True),
        ("test_java_transactions.py::test_a[throw-4.7.1-json]", "test_java_transactions.py::test_b[4.7.1-json]", True),
        ("test_java_vip.py::test_a", "test_java_vip.py::test_b", True),
        ("test_store_both_ways.py::test_a[ours-first]", "test_store_both_ways.py::test_a[apache-first]", False),
    ],
)
def test_what_shares_a_server_stays_together(one: str, other: str, same: bool) -> None:
    assert (together(f"tests/interop/{one}") == together(f"tests/interop/{other}")) is same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("wire/test_ids.py::test_a[1.2.3]", "wire/test_ids.py::test_b[ours]", True),
        ("wire/test_ids.py::test_a", "wire/test_json.py::test_a", False),
        ("events/machine/test_machine.py::test_a[core on mysql]", "events/machine/test_machine.py::test_a[core on sqlite]", False),
        ("spark/source/test_source.py::test_a", "spark/sink/test_sink.py::test_a[ours]", True),
        ("spark/lake/test_kills.py::test_a", "spark/jobs/test_query.py::test_a", True),
        ("spark/lake/test_kills.py::test_a", "spark/source/test_source.py::test_a", False),
        ("console/browser/test_chromium.py::test_a", "console/browser/test_accessibility.py::test_a", True),
    ],
)
def test_what_shares_a_file_or_a_session_stays_together(one: str, other: str, same: bool) -> None:
    assert (together(f"tests/{one}") == together(f"tests/{other}")) is same


@pytest.mark.parametrize(
    ("file", "text", "marks", "left"),
    [
        ("interop/test_order.py", "", "not slow and not interop", True),
        ("interop/test_order.py", "", "", False),
        ("simulation/test_order.py", "", "not slow", True),
        ("wire/test_ids.py", "import a\n\npytestmark = [pytest.mark.slow, pytest.mark.mission('1')]\n", "not slow", True),
        ("wire/test_ids.py", "@pytest.mark.slow\ndef test_a(): ...\n", "not slow", False),
        ("wire/test_ids.py", "pytestmark = pytest.mark.slow\n", "slow", False),
    ],
)
def test_files_of_which_every_test_is_left_out_are_not_imported(file: str, text: str, marks: str, left: bool) -> None:
    assert left_out(f"tests/{file}", text, marks) is left


def test_what_takes_longest_comes_first_and_all_places_are_there() -> None:
    ranks = [rank(f"tests/{file}::test_a") for file in ("spark/source/test_source.py", "events/test_on.py", "wire/test_ids.py")]
    root = Path(__file__).parents[1]

    assert ranks == sorted(set(ranks))
    assert [place for place in (*FIRST, *SLOW, *TOGETHER, *MAY_BE_LATE) if not list(root.glob(f"{place}*"))] == []


CONFTEST = """
from tests.dealing import Dealing

def pytest_xdist_make_scheduler(config, log):
    return Dealing(config, log)
"""
DIES = """
import os, pytest

@pytest.mark.parametrize("number", range(5))
def test_a(number):
    if number == 2:
        os._exit(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("files", [1, 2, 9])
def test_when_a_process_dies_all_other_tests_run_once_and_none_is_waited_for(tmp_path: Path, files: int) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number in range(files):
        (tmp_path / f"test_{number}.py").write_text(DIES if number == files // 2 else f"def test_{number}():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:randomly", "-p", "no:cacheprovider", "-c", os.devnull, tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    ran = run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert f"1 failed, {files - 1 + 4} passed" in ran.stdout
    assert f"test_{files // 2}.py::test_a[2]'" in ran.stdout
