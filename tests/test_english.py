"""Plain technical English: a docstring or a help text begins with the thing or the verb, not with a word that hides its subject."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon.cli.shared.command_group import COMMANDS, load

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("examples", "simulation", "src/halfmoon", "tools")

HIDES_ITS_SUBJECT = re.compile(r"(What|Who|Whoever|Whatever|Whom|Whose|That|So|Such|Of)\b")


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a source with their lines: of the module, classes, functions and of names that are assigned."""
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", None) or () if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value.strip()


def faults(source: str) -> list[str]:
    """Return the texts of a source that hide their subjects."""
    return [f"{line}: {text:.60}" for line, text in texts(source) if HIDES_ITS_SUBJECT.match(text)]


def files() -> Iterator[Path]:
    """Yield the sources whose texts are read by users and developers."""
    for room in ROOMS:
        yield from sorted((ROOT / room).rglob("*.py"))


def test_docstrings_begin_with_the_thing_or_the_verb():
    found = {path.relative_to(ROOT).as_posix(): faults(path.read_text()) for path in files()}

    assert len(found) > 700
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_comments_of_rust_begin_with_the_thing_or_the_verb():
    sources = sorted((ROOT / "native/src").glob("*.rs"))
    firsts = re.compile(r"^\s*//[/!] (.*)", re.MULTILINE)

    assert len(sources) > 10
    assert [text for path in sources for text in firsts.findall(path.read_text()) if HIDES_ITS_SUBJECT.match(text)] == []


def test_help_texts_begin_with_the_thing_or_the_verb():
    waiting = [(name, load(name)) for name in COMMANDS]
    helps = []
    while waiting:
        name, command = waiting.pop()
        helps += [(name, command.help or ""), *((f"{name} {each.name}", each.help or "") for each in command.params)]
        waiting += [(f"{name} {verb}", inner) for verb, inner in getattr(command, "commands", {}).items()]

    assert len(helps) > 500
    assert [(name, text) for name, text in helps if HIDES_ITS_SUBJECT.match(text)] == []


@pytest.mark.parametrize(
    "source",
    ['"""What it is."""', 'def f():\n    """Who asks."""', 'class A:\n    """Such a thing."""', 'X = 1\n"""So many."""',
     'class A:\n    x: int\n    """Of what."""'],
)  # fmt: skip
def test_the_rule_bites(source):
    assert faults(source)


def test_other_beginnings_are_free():
    assert faults('"""Sorted names."""\nX = "What"\n"""Office hours."""\ndef f():\n    """Whole bodies."""') == []
