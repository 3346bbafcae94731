"""What fails a test in the browser, and what does not: `planted` is run, with a test of asyncio between two files of it."""

from __future__ import annotations

import os
import re
import shutil
import struct
import sys
from pathlib import Path
from subprocess import run

import pytest
from playwright.sync_api import Page

from tests.console.browser import chromium
from tests.console.browser.chromium import program, shot

ROOT = Path(__file__).parents[3]
WAITING = "import asyncio\n\nasync def test_waits():\n    await asyncio.sleep(0)\n"
PASSED = {"test_plain", "test_visitors", "test_left", "test_expected", "test_expected_dialog"}
FAILED = {
    "test_not_happened": "did not happen: dialog",
    "test_fault[error]": "script error: Cannot read properties of null",
    "test_fault[said]": "console: half done",
    "test_fault[dialog]": "dialog: alert 'hello'",
    "test_fault[forbidden]": "Content Security Policy directive",
    "test_fault[incomplete]": "status of 404 (Not Found) (http://127.0.0.1:",
    "test_fault[elsewhere]": "request to another machine: http://example.com/counted.png",
    "test_fault[unknown]": "status of 404 (Not Found) (http://127.0.0.1:",
    "test_refused": "request failed: net::ERR_",
    "test_late": "script error: late",
}


def _planted(folder: Path, **environment: str) -> str:
    """Run `planted` twice, and return the lines about each test."""
    (folder / "conftest.py").write_text("from tests.console.browser.conftest import *\n")
    shutil.copy(Path(__file__).with_name("planted.py"), folder / "test_1.py")
    (folder / "test_2.py").write_text(WAITING)
    (folder / "test_3.py").write_text("from tests.console.browser.planted import site, test_plain\n")
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:randomly", "-p", "no:cacheprovider", "-c", os.devnull]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "999", **environment}
    options = ["--rootdir", str(folder), "-o", "asyncio_mode=auto", str(folder)]
    ran = run([*command, *options], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return ran.stdout.partition("short test summary info")[2]


@pytest.mark.skipif(program() is None, reason="Chromium is not installed (apt-get install chromium)")
def test_what_a_page_must_not_do_fails_its_test_and_nothing_else_does(tmp_path: Path) -> None:
    ran = _planted(tmp_path)

    passed = {*re.findall(r"^PASSED (test_\d)\.py::(.*)", ran, re.M)}
    failed = dict(re.findall(r"^FAILED test_1\.py::(\S+) - (.*)", ran, re.M))
    assert {name for file, name in passed if file == "test_1"} == PASSED
    assert ("test_2", "test_waits") in passed
    assert ("test_3", "test_plain") in passed
    assert {*failed} == {*FAILED}
    assert [name for name, words in FAILED.items() if words not in failed[name]] == []


def test_pictures_are_made_where_they_are_asked_for(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.set_content("<main><h1>Overview</h1><p style='height: 2000px'>All</main>")
    monkeypatch.setattr(chromium, "IMAGES", tmp_path)
    monkeypatch.delenv("CONSOLE_PICTURES", raising=False)
    shot(page, "no")
    monkeypatch.setenv("CONSOLE_PICTURES", "1")
    shot(page, "yes")

    [picture] = tmp_path.iterdir()
    assert picture.name == "console-yes.png"
    assert struct.unpack(">II", picture.read_bytes()[16:24]) == (1280, 800)


def test_without_a_browser_tests_are_skipped_and_say_so(tmp_path: Path) -> None:
    ran = _planted(tmp_path, PATH=str(tmp_path))

    assert re.findall(r"^(?:PASSED|FAILED|ERROR) (.*)", ran, re.M) == ["test_2.py::test_waits"]
    assert "Chromium is not installed (apt-get install chromium)" in ran
