"""The rules of the house that a script can see: sizes, names, opening docstrings, and nothing of one machine in the repository."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import house
from tests.house import ROOT, name_of

LINES_MAX = 530

CROWDED: dict[str, int] = {}
"""Folders that may hold more files, and how many."""

LONG_FUNCTIONS = {
    "src/halfmoon/columns/messages.py: Messages.encode": 50,  # one pass over what touches every message: a call more costs
}
"""Functions that may have more lines, and how many. Only shrinks."""

BRANCHING = {
    "src/halfmoon/columns/record.py: gather": 16,  # one pass over what touches every message: a call more costs
    "src/halfmoon/store/log/files.py: _usable_files": 16,
}
"""Functions that may have more branches, and how many. Only shrinks."""

UNTESTED: dict[str, int] = {
    # commands and what they print: tests of the command they belong to
    "src/halfmoon/cli/spark": 4,
    # parts of the publisher: tests/events runs them whole
    "src/halfmoon/events": 1,
    "src/halfmoon/events/outbox": 1,
    # providers and tables: tests/events runs the same promises over each database
    "src/halfmoon/events/databases": 1,
    "src/halfmoon/events/dbapi": 1,
    "src/halfmoon/events/dedup": 1,
    "src/halfmoon/events/django": 4,
    "src/halfmoon/events/django/management/commands": 4,
    "src/halfmoon/events/django/migrations": 4,
    "src/halfmoon/events/sqlalchemy": 1,
    # parts of a source, sink or table: tests/spark runs them whole, in a session
    "src/halfmoon/spark/jobs": 1,
    "src/halfmoon/spark/lake": 2,
}
"""Source files of a folder that have no test module of their name, at most. Only shrinks."""

FORBIDDEN_WORDS = {"manager", "helper", "helpers", "util", "utils", "impl"}

_KNOWN_HOSTS = (
    "127.0.0.1",
    "0.0.0.0",
    "rocketmq.apache.org",
    "www.apache.org",
    "maven.apache.org/POM/",
    "maven.apache.org/xsd/",
    "www.w3.org",
    "host",
    "MQ_INST_",
)
"""Beginnings of what may stand behind ``http://``: pages that answers name, XML name spaces, made-up hosts of tests."""

_MADE_UP = r"[\w-]+(?:\.[\w-]+)*\.test\b|(?:[\w-]+\.)*example\.com\b|console\.example\b|Host\.Example\b"
"""Hosts that are nobody's."""

_PLACES = ["/" + "work/", "/" + "root/", "/" + "home/"]
FOREIGN = re.compile(
    r"https?://(?!"
    + "|".join([*(re.escape(host) for host in _KNOWN_HOSTS), _MADE_UP])
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
    stated = [node for node in stated if "overload" not in map(ast.unparse, node.decorator_list)]  # the function itself says it
    return Said(
        ast.get_docstring(tree),
        [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)],
        [node.name for node in stated if not node.name.startswith("_") and not ast.get_docstring(node)],
    )


def test_files_are_short():
    long = {name_of(path) for path in PYTHON if len(path.read_text().splitlines()) > LINES_MAX}

    assert long == set(), "split at the second noun"


def over(measured: dict[str, int], allowed: dict[str, int]) -> dict[str, int]:
    """Return what is above its bound in this house and above what its exception allows."""
    return {place: number for place, number in measured.items() if number > allowed.get(place, 0)}


def test_a_folder_holds_as_many_files_as_a_reader_looks_through():
    assert over(house.crowded(), CROWDED) == {}, "group them by what they are about"


def test_a_function_fits_a_screen():
    assert over(house.long_functions(), LONG_FUNCTIONS) == {}, "see what it does one after the other, and name that"


def test_a_function_has_few_branches():
    assert over(house.branching_functions(), BRANCHING) == {}, "a step of its own for each case, or a table"


def test_every_source_file_has_a_test_module_at_the_same_path():
    untested = house.untested()
    folders = Counter(path.rpartition("/")[0] for path in untested)

    assert over(folders, UNTESTED) == {}, f"one of these wants tests in a module named after it: {untested}"


def test_no_exception_is_of_something_that_is_gone():
    places = {place.partition(":")[0] for place in (*CROWDED, *LONG_FUNCTIONS, *BRANCHING, *UNTESTED)}

    assert [place for place in places if not (ROOT / place).exists()] == []


def test_branches_and_lines_are_counted_for_each_function_alone():
    source = """
class A:
    def f(self, x):
        '''Two lines
        of text.'''
        def inner():
            return [y for y in x if y and x or y]
        if x and y:
            return 1
        for z in x:
            try:
                pass
            except OSError:
                pass
"""
    assert house.functions_of(source) == [("A.f", 12, 4), ("A.f.inner", 2, 3)]


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ("src/halfmoon/model.py", "tests/test_model.py"),
        ("src/halfmoon/wire/headers/pull.py", "tests/wire/headers/test_pull.py"),
        ("src/halfmoon/wire/bodies/__init__.py", "tests/wire/test_bodies.py"),
        ("src/halfmoon/__init__.py", "tests/test_halfmoon.py"),
        ("simulation/disk.py", "tests/simulation/test_disk.py"),
    ],
)
def test_a_test_module_is_named_after_its_source_file(source: str, tests: str):
    assert house.test_module_of(source) == tests


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
