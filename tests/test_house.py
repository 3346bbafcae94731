"""The rules of the house that a script can see: sizes, names, opening docstrings, and nothing of one machine in the repository."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 530

LONG_FILES: dict[str, str] = {
    "tests/client/core/consume/test_pull_consumer.py": "one fixture runs all that a poll promises for both faces",
}
"""Python files that may be longer, each with its reason."""

FORBIDDEN_WORDS = {"manager", "helper", "helpers", "util", "utils", "impl"}

_KNOWN_HOSTS = (
    "rocketmq.apache.org",
    "www.apache.org",
    "maven.apache.org/POM/",
    "maven.apache.org/xsd/",
    "www.w3.org",
    "host",
    "MQ_INST_",
)
"""Beginnings of what may stand behind ``http://``: pages that answers name, XML name spaces, made-up hosts of tests."""

_PLACES = ["/" + "work/", "/" + "root/", "/" + "home/"]
FOREIGN = re.compile(
    r"https?://(?!"
    + "|".join(re.escape(host) for host in _KNOWN_HOSTS)
    + r")[\w-]+\.[\w.-]+|"
    + "|".join(rf"(?<![\w.}}]){re.escape(place)}" for place in _PLACES)
)
"""An address that the repository has no reason to name (a lock file would bring some), or a path of somebody's machine."""


def tracked() -> list[Path]:
    """Return the files of the repository that git knows, or every file of the sources where there is no git."""
    try:
        names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
        return [ROOT / name for name in names if name and (ROOT / name).is_file()]
    except (OSError, subprocess.CalledProcessError):
        parts = [ROOT / part for part in ("src", "simulation", "tests", "docs", "tools", "benchmarks")]
        return [path for part in parts for path in part.rglob("*") if path.is_file()]


FILES = tracked()
PYTHON = [path for path in FILES if path.suffix == ".py"]


def name_of(path: Path) -> str:
    """Return a file's path inside the repository."""
    return path.relative_to(ROOT).as_posix()


def words(name: str) -> set[str]:
    """Return the words of a snake_case or CamelCase name, in small letters."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


class Said(NamedTuple):
    """What a Python file says of itself: its docstring, its classes, and what is public in it without a docstring."""

    opening: str | None
    classes: list[str]
    silent: list[str]


@cache
def said(path: Path) -> Said:
    """Return what a file says of itself. All tests look at one reading: parsing them all takes seconds."""
    tree = ast.parse(path.read_text())
    stated = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    return Said(
        ast.get_docstring(tree),
        [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)],
        [node.name for node in stated if not node.name.startswith("_") and not ast.get_docstring(node)],
    )


def test_files_are_short_or_say_why_not():
    long = {name_of(path) for path in PYTHON if len(path.read_text().splitlines()) > LINES_MAX}

    assert long - set(LONG_FILES) == set(), "split at the second noun, or list the file with its reason"
    assert set(LONG_FILES) - long == set(), "no longer long: take it off the list"


def test_no_file_or_class_has_a_name_that_says_nothing():
    found = [name_of(path) for path in PYTHON if words(path.stem) & FORBIDDEN_WORDS]
    found += [f"{name_of(path)}: class {name}" for path in PYTHON for name in said(path).classes if words(name) & FORBIDDEN_WORDS]

    assert found == []


def test_every_module_says_what_it_holds():
    silent = [name_of(path) for path in PYTHON if not said(path).opening and path.read_text().strip()]

    assert silent == []


def test_every_public_function_and_class_of_the_package_has_a_docstring():
    package = [path for path in PYTHON if name_of(path).startswith(("src/", "simulation/"))]
    silent = [f"{name_of(path)}: {name}" for path in package for name in said(path).silent]

    assert silent == []


def test_no_file_names_a_place_on_one_machine_or_a_package_registry():
    found = []
    for path in FILES:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{name_of(path)}:{text.count(chr(10), 0, hit.start()) + 1}: {hit.group()}" for hit in FOREIGN.finditer(text)]

    assert found == []


def calls_with_a_type(source: str) -> list[int]:
    """Return the lines on which msgspec's typed decoding is used, whatever it is called there."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "msgspec":
            if {alias.name for alias in node.names} & {"convert", "decode", "Decoder", "json", "msgpack", "toml", "yaml"}:
                found.append(node.lineno)
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"msgspec\.(convert|\w+\.Decoder)", ast.unparse(node)):
            found.append(node.lineno)
        elif isinstance(node, ast.Call) and re.fullmatch(r"msgspec\.\w+\.decode", ast.unparse(node.func)):
            found += [node.lineno] if any(keyword.arg in ("type", None) for keyword in node.keywords) else []
    return found


def test_values_get_their_type_in_one_module_where_threads_cannot_meet_in_a_type_that_is_half_known():
    door = "src/halfmoon/conversion.py"
    found = [
        f"{name_of(path)}:{line}"
        for path in PYTHON
        if name_of(path).startswith("src/") and name_of(path) != door
        for line in calls_with_a_type(path.read_text())
    ]

    assert found == [], f"use {door}"
    assert calls_with_a_type((ROOT / door).read_text())


@pytest.mark.parametrize(
    "text",
    [
        "msgspec.convert(x, Order)",
        "f = msgspec.convert",
        "msgspec.json.Decoder(Order)",
        "msgspec.json.decode(x, type=Order)",
        "msgspec.msgpack.decode(x, **how)",
        "from msgspec import convert",
        "from msgspec.json import Decoder",
    ],
)
def test_the_rule_of_typed_decoding_bites(text: str):
    assert calls_with_a_type(text) == [1]


@pytest.mark.parametrize("text", ["msgspec.json.decode(x)", "msgspec.json.encode(x)", "from msgspec import structs"])
def test_the_rule_of_typed_decoding_lets_others_through(text: str):
    assert calls_with_a_type(text) == []


@pytest.mark.parametrize("name", ["QueueManager", "string_utils", "StoreImpl", "helpers"])
def test_the_rule_of_names_bites(name: str):
    assert words(name) & FORBIDDEN_WORDS


@pytest.mark.parametrize("name", ["Implicit", "utility_cost", "Broker", "TLSHost"])
def test_the_rule_of_names_lets_others_through(name: str):
    assert not words(name) & FORBIDDEN_WORDS


@pytest.mark.parametrize("text", ["cd /" + "work/main", "https://packages." + "example/simple", "'/" + "root/.cache'"])
def test_the_rule_of_places_bites(text: str):
    assert FOREIGN.search(text)


def test_the_rule_of_places_knows_a_relative_path():
    assert not FOREIGN.search("src/work" + "/queue.py and ${user.home}/root" + "/x")
