"""The wheel alone, in an empty environment, is all that a broker and a client need; commands that errors name add to it."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENT_MB_MAX = 60
PROCESSOR_SECONDS_MAX = 30
"""From nothing to the first message, without what waits for the network or for other tests; measured: 10."""
PINNED = re.compile(r"^([a-z0-9.-]+)==(?:[^\n]*\\\n)*[^\n]*\n", re.M)
INSTALL = re.compile(
    r"pip install ((?:'[^'\n]*'|\"[^\"\n]*\"|[\w.\[\]/*<>=~-]+)(?: (?:'[^'\n]*'|\"[^\"\n]*\"|[\w.\[\]/*<>=~-]+))*)"
)
TEXTS = sorted([
    ROOT / "README.md", ROOT / "native" / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md"),
    *(ROOT / "examples").rglob("*.py"), *(ROOT / "src").rglob("*.py"),
])  # fmt: skip


def pins(name: str) -> dict[str, str]:
    """Return the packages that a file pins, with their lines."""
    return {found[1]: found[0] for found in PINNED.finditer((ROOT / name).read_text())}


def needed(*requirements: str) -> set[str]:
    """Return the names of the packages that requirements need here, all the way down."""
    found: dict[tuple[str, frozenset[str]], Requirement] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        key = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if key in found:
            continue
        found[key] = wanted
        for text in distribution(wanted.name).requires or []:
            further = Requirement(text)
            if any(further.marker is None or further.marker.evaluate({"extra": extra}) for extra in ["", *wanted.extras]):
                waiting.append(further)
    return {name for name, _ in found}


def processor_seconds() -> float:
    """Return how long the processes have worked that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Environment:
    """A virtual environment into which the wheel was installed, and what it needs."""

    def __init__(self, directory: Path, wheels: Path) -> None:
        began, self.bin = processor_seconds(), directory / "bin"
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HALFMOON"))}
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        self.pip("--require-hashes", "-r", str(ROOT / "constraints-base.txt"))
        self.pip("--no-deps", *map(str, wheels.glob("halfmoon-*.whl")))
        self.size_mb = sum(file.lstat().st_size for file in directory.rglob("*") if file.is_file()) / 1e6
        self.processor_seconds = processor_seconds() - began

    def pip(self, *arguments: str) -> None:
        """Install something."""
        assert self.run("python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments)[0] == 0

    def run(self, name: str, *arguments: str) -> tuple[int, str]:
        """Run a program of it; return its exit code and what it wrote."""
        command = [self.bin / name, *arguments]
        ran = subprocess.run(
            command, env=self.variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return ran.returncode, ran.stdout


@pytest.fixture(scope="module")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """An environment with the wheel."""
    there = tmp_path_factory.mktemp("installed")
    yield Environment(there / "env", wheels)
    shutil.rmtree(there)


@pytest.fixture
def nameserver(installed: Environment, tmp_path: Path) -> Iterator[str]:
    """The broker of the wheel, as the README starts it, on free ports."""
    command = next(line[2:] for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("$ halfmoon serve"))
    command += " --nameserver-port 0 --broker-port 0 --json"
    program, *options = shlex.split(command)
    with subprocess.Popen(
        [installed.bin / program, *options], cwd=tmp_path, env=installed.variables, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["nameserver"]
        server.terminate()
    assert server.returncode == 0


@pytest.mark.slow
def test_a_minute_after_nothing_a_message_is_sent_and_read(installed: Environment, nameserver: str) -> None:
    examples = re.findall(r"```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    first = next(example for example in examples if "producer.send(" in example).replace("127.0.0.1:9876", nameserver)

    began = processor_seconds()
    code, sent = installed.run("python", "-c", first)
    assert (code, sent[:7]) == (0, "SEND_OK"), sent
    code, read = installed.run("halfmoon", "consume", "-n", nameserver, "--topic", "orders", "--count", "1")

    assert (code, "order" in read) == (0, True), read
    assert processor_seconds() - began + installed.processor_seconds < PROCESSOR_SECONDS_MAX
    assert installed.size_mb < ENVIRONMENT_MB_MAX


@pytest.mark.slow
def test_the_command_that_an_error_names_adds_to_a_wheel_what_is_missing(installed: Environment) -> None:
    program = "from halfmoon.wire.compression import _optional; _optional('lz4.frame')"
    code, said = installed.run("python", "-c", program)
    assert code == 1
    found = INSTALL.search(said)
    assert found, said

    installed.pip(*shlex.split(found[1]))

    assert installed.run("python", "-c", program) == (0, "")


def test_every_extra_is_named_with_a_command_that_adds_it() -> None:
    """What is written as an advice, ``install halfmoon[x]``, says neither how nor whether an index is needed."""
    assert len(TEXTS) > 20
    for path in TEXTS:
        for line in path.read_text().splitlines():
            assert not re.search(r"\binstall (?:the extra )?`?halfmoon\[", line), f"{path}: {line}"


def test_every_command_that_a_text_names_is_one_that_a_shell_and_pip_understand() -> None:
    found = [(path, words[1]) for path in TEXTS for words in INSTALL.finditer(path.read_text())]
    assert len(found) >= 10
    for path, words in found:
        assert "'" in words or '"' in words or "[" not in words, f"{path}: zsh takes brackets for a pattern: {words}"
        for word in shlex.split(words):
            if word.startswith("-") or word.endswith((".whl", ".txt")) or word == "halfmoon[{extra}]":
                continue
            wanted = Requirement(re.sub(r"^\S*/(halfmoon)-[^\[]*\.whl", r"\1", word))
            assert wanted.name != "halfmoon" or wanted.extras <= {*PROJECT["optional-dependencies"]}, f"{path}: {word}"


def test_every_page_installs_the_wheel_in_one_way() -> None:
    ways = {
        word
        for path in TEXTS
        for words in INSTALL.finditer(path.read_text())
        for word in words[1].replace("'", " ").split()
        if ".whl" in word
    }
    assert ways == {"dist/halfmoon*.whl"}, "where `make wheel` puts it"


def test_the_extra_that_an_error_names_brings_the_package_that_it_misses() -> None:
    found = [
        (path, package, extra)
        for path in TEXTS
        for package, extra in re.findall(r"needs? (\w+)[: (]+pip install 'halfmoon\[([\w-]+)\]", path.read_text())
    ]

    assert len(found) >= 5
    for path, package, extra in found:
        assert canonicalize_name(package) in needed(f"halfmoon[{extra}]"), f"{path}: {extra}"


def test_the_wheel_has_the_pages_that_errors_name(wheels: Path) -> None:
    (wheel,) = wheels.glob("halfmoon-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())

    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts]
    assert {f"halfmoon/documentation/{page.as_posix()}" for page in pages} - inside == set()
    assert not any(name.endswith(".png") and name.startswith("halfmoon/documentation/") for name in inside)


def test_what_the_wheel_needs_is_pinned_as_for_development() -> None:
    base, everything = pins("constraints-base.txt"), pins("constraints.txt")

    assert {*base} == needed("halfmoon") - {"halfmoon"}
    assert all(everything[name] == lines for name, lines in base.items())


def test_what_builds_wheels_is_pinned_as_for_development() -> None:
    tools, everything = pins("constraints-build.txt"), pins("constraints.txt")

    assert {*tools} == needed("hatchling", "editables", "maturin")
    assert all(everything[name] == lines for name, lines in tools.items())


def test_the_development_environment_has_what_demo_and_tests_need_and_no_more() -> None:
    extras = ",".join(PROJECT["optional-dependencies"])

    assert {*pins("constraints.txt")} == needed(f"halfmoon[{extras}]", "hatchling", "editables") - {"halfmoon"}
