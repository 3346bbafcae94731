"""Pages of the documentation are named by the command that shows them, and every page that is named exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from halfmoon.documentation import see

ROOT = Path(__file__).resolve().parent.parent
PATH = re.compile(r"(?<!\]\()(?<![\w/])(?:docs/)?[a-z][a-z0-9-]*\.md\b")
"""A path of a page, but for links of pages that are generated from these strings."""
SOURCES = sorted((ROOT / "src/halfmoon").rglob("*.py"))


def strings(source: Path) -> list[ast.Constant]:
    """Return the strings that a program may show: all but docstrings, of which those of commands are helps."""
    tree = ast.parse(source.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)} if "cli" not in source.parts else set()
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone
    ]


def test_no_text_of_the_package_names_a_path_that_only_a_clone_has():
    found = [
        f"{source.relative_to(ROOT)}:{node.lineno}: {path[0]}"
        for source in SOURCES
        for node in strings(source)
        for path in PATH.finditer(node.value)
    ]

    assert found == []


def test_every_page_that_a_text_names_exists():
    calls = [
        node.args[0].value
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "see"
        if isinstance(node.args[0], ast.Constant)
    ]

    assert len(calls) > 10
    assert [page for page in calls if not (ROOT / "docs" / f"{page}.md").is_file()] == []
    assert see("access") == "halfmoon docs access"


@pytest.mark.parametrize(("text", "found"), [("see docs/access.md", True), ("[tags](filters.md)", False), ("(tls.md)", True)])
def test_a_path_is_told_from_a_link(text, found):
    assert bool(PATH.search(text)) is found
