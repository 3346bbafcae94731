"""Every example of the README and of the pages for users runs, in order, against one broker; its output is what the page says.

A comment before a block says what it must show (``<!-- shows: text -->``), that it is a test (``<!-- runs: pytest -->``), or that
it works on a stopped store in ``./data`` (``<!-- store -->``). One that begins with ``needs NAME;`` leaves the block out where
that package is not installed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import NamedTuple

import pytest

from halfmoon import Message, Producer
from halfmoon.cli.servers import OPTIONS, read_options, settings_from
from halfmoon.testing.local import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "docs/install.md",
    "docs/getting-started.md",
    "docs/transactions.md",
    "docs/redelivery.md",
    "docs/filters.md",
    "docs/order.md",
    "docs/offsets.md",
    "docs/trace.md",
    "docs/delay.md",
    "docs/events.md",
    "docs/declarations.md",
    "docs/from-rocketmq-client-python.md",
    "docs/data.md",
    "docs/spark.md",
    "docs/repair-and-backup.md",
    "docs/tutorials/spark-from-kafka.md",
]
ADDRESS = "127.0.0.1:9876"
SHORT_LIVED = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Spark's JVM lives for one example: so it costs half the processor time."""
BLOCK = re.compile(r"(?:<!-- (?P<note>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    """One block of a page: where, its language, the comment before it, its text."""

    place: str
    language: str
    note: str
    text: str


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in order."""
    text = (ROOT / page).read_text()
    return [
        Block(f"{page}:{text.count(chr(10), 0, found.start()) + 1}", found["language"], found["note"] or "", found["text"])
        for found in BLOCK.finditer(text)
    ]


def run(
    command: list[str], nameserver: str, stdin: str | None = None, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command against the broker, in ``directory`` where given; ``stdin`` None is a closed standard input."""
    environment = {**os.environ, **SHORT_LIVED, "NAMESRV_ADDR": nameserver, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, timeout=300, cwd=directory)


def run_until_shown(code: str, shown: str, nameserver: str) -> str:
    """Run code that waits for Enter; press it once the text was shown. Return everything written until then."""
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        written = ""
        alarm = Timer(60, process.kill)  # a text that never comes ends the reading, and the test with it
        alarm.start()
        for line in process.stdout:
            written += line
            if shown in line:
                break
        alarm.cancel()
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(60) == 0, written
    return written


def halfmoon_commands(block: Block) -> list[list[str]]:
    """Return the words of each ``$ halfmoon …`` line."""
    lines = [shlex.split(line[2:]) for line in block.text.splitlines() if line.startswith("$ ")]
    return [words[1:] for words in lines if words[0] == "halfmoon"]


@pytest.fixture(scope="module", params=PAGES)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, LocalCluster]]:
    """A page, and the broker that its examples share."""
    with LocalCluster(tmp_path_factory.mktemp("examples") / "store") as cluster:
        yield request.param, cluster


@pytest.mark.slow
def test_every_example_runs_and_shows_what_the_page_says(page: tuple[str, LocalCluster], tmp_path: Path) -> None:
    name, cluster = page
    shown = blocks(name)
    assert shown, "a page without examples"
    for block in map(_with_its_package, shown):
        if block is None:
            continue
        if block.language == "python":
            _python(block, cluster.nameserver, tmp_path)
        elif block.language == "console":
            _console(block, cluster.nameserver, stopped_store(tmp_path) if block.note == "store" else None)
        elif block.language == "toml":
            (tmp_path / "example.toml").write_text(block.text)
            assert tomllib.loads(block.text)
            settings_from("serve", {"config": [str(tmp_path / "example.toml")]}, {})


def _with_its_package(block: Block) -> Block | None:
    """Return a block without the note of the package that it needs; None: that is not installed."""
    needed = re.match(r"needs (\w+); ?", block.note)
    if needed is None:
        return block
    return block._replace(note=block.note[needed.end() :]) if find_spec(needed[1]) is not None else None


def _python(block: Block, nameserver: str, tmp_path: Path) -> None:
    code = block.text.replace(ADDRESS, nameserver)
    kind, _, said = block.note.partition(": ")
    if block.note == "runs: no":
        compile(code, block.place, "exec")
    elif block.note == "runs: pytest":
        (tmp_path / "test_example.py").write_text(code)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "halfmoon.testing.plugin", "-p", "no:cacheprovider", str(tmp_path)]
        ended = run(command, nameserver, directory=tmp_path)
        assert ended.returncode == 0, f"{block.place}\n{ended.stdout}"
        assert "1 passed" in ended.stdout
    else:
        assert kind == "shows", f"{block.place}: a comment must say what the example shows"
        if "input(" in code:
            assert said in run_until_shown(code, said, nameserver), block.place
            return
        ended = run([sys.executable, "-c", code], nameserver, directory=tmp_path)
        assert ended.returncode == 0, f"{block.place}\n{ended.stderr}"
        assert said in ended.stdout, block.place


def stopped_store(directory: Path) -> Path:
    """Return a directory with a stopped store of default sizes in ``data``."""
    if not (directory / "data").exists():
        settings = {"maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}
        with (
            LocalCluster(directory / "data", settings) as cluster,
            Producer(group="P", nameserver=cluster.nameserver) as producer,
        ):
            producer.send(Message("orders", b"250", tag="paid", keys=["o-1"], properties={"amount": "250"}))
    return directory


def _console(block: Block, nameserver: str, directory: Path | None) -> None:
    for words in halfmoon_commands(block):
        if words[0] in OPTIONS:
            values = read_options(OPTIONS[words[0]], words[1:])
            assert values is not None, f"{block.place}: {words}"
            settings_from(words[0], values, {})
        else:
            ended = run([sys.executable, "-m", "halfmoon.cli.main", *words], nameserver, directory=directory)
            assert ended.returncode == 0, f"{block.place}: {words}\n{ended.stdout}{ended.stderr}"


@pytest.mark.parametrize("name", PAGES)
def test_links_between_pages_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text()

    broken = [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not ((ROOT / name).parent / link).exists()]

    assert broken == []
