"""Apache's admin tool prints the same against Apache's servers and against ours, but where the table says otherwise.

``RECORD=1`` writes `result.json`, from which ``tools/generate_mqadmin.py`` writes the page, instead of comparing with it.
"""

from __future__ import annotations

import difflib
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from halfmoon.settings.java_keys import IGNORED, PLACES, REFUSED
from tests.interop.apache import Cluster
from tests.interop.mqadmin import accounts
from tests.interop.mqadmin.commands import NUMBERED, arguments, mark
from tests.interop.mqadmin.result import RESULT, result
from tests.interop.mqadmin.scenario import APACHE, LIST, prints
from tests.interop.ours import Serve

Prints = dict[str, list[str]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Prints, Prints]:
    """What each call printed against Apache's servers and against ours, which run side by side."""
    home = tmp_path_factory.mktemp("mqadmin")

    def apache() -> Prints:
        plain = Cluster("4.9.7", home / "apache", settings=APACHE)
        guarded = Cluster("4.9.7", home / "apache-acl", settings={**APACHE, **accounts.SETTINGS})
        return {**prints(plain, home / "tool-apache"), **accounts.prints(guarded, home / "tool-apache-acl")}

    def ours() -> Prints:
        plain, guarded = Serve(home / "ours" / "data"), Serve(home / "ours-acl" / "data", settings=accounts.SETTINGS)
        return {**prints(plain, home / "tool-ours"), **accounts.prints(guarded, home / "tool-ours-acl")}

    with ThreadPoolExecutor(2) as threads:
        theirs, mine = threads.submit(apache), threads.submit(ours)
        return theirs.result(), mine.result()


@pytest.mark.parametrize("call", NUMBERED)
def test_a_call_prints_the_same_or_the_table_says_why_not(call: str, both: tuple[Prints, Prints]) -> None:
    apache, ours = (prints[call] for prints in both)
    expected, reason = mark(call)

    if expected == "same":
        assert not list(difflib.unified_diff(apache, ours, "Apache 4.9.7", "ours", lineterm="", n=1))
    else:
        assert apache != ours, f"it prints the same: take the mark away ({expected}: {reason})"


def test_every_command_that_there_is_is_called(both: tuple[Prints, Prints]) -> None:
    apache, _ = both
    listed = [line.split()[0] for line in apache[LIST] if line.startswith("   ")]

    assert len(listed) == 57
    assert not set(listed) - {arguments(call)[0] for call in NUMBERED}


@pytest.mark.parametrize("call", ["getBrokerConfig -b {broker}", "getNamesrvConfig"])
def test_each_setting_that_apache_prints_is_printed_or_known_not_to_be_a_setting(call: str, both: tuple[Prints, Prints]) -> None:
    apache, ours = (_settings(prints[call]) for prints in both)
    known = IGNORED.keys() | REFUSED.keys() | PLACES.keys()

    assert not apache.keys() - ours.keys() - known
    shared = apache.keys() & ours.keys() - {"listenPort", "haListenPort", "brokerIP2"}
    assert {key: ours[key] for key in shared} == {key: apache[key] for key in shared}


def _settings(lines: list[str]) -> dict[str, str]:
    pairs = [line.split(" =", 1) for line in lines if " =" in line]
    return {key: value.strip() for key, value in pairs}


def test_the_recorded_result_is_that_of_this_run(both: tuple[Prints, Prints]) -> None:
    apache, ours = both
    found = result({call for call in NUMBERED if apache[call] == ours[call]})

    if os.environ.get("RECORD"):
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
    assert json.loads(RESULT.read_text()) == found, "stale: run this module with RECORD=1, then python tools/generate_mqadmin.py"
