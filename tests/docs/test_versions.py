"""The public modules of docs/versions.md: they are there, they explain themselves, and examples import from nothing else."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "versions.md"
MODULES = re.findall(r"^\| `(halfmoon[\w.]*)` \|", PAGE.read_text(), re.M)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
NEEDS = {
    "halfmoon.events.sqlalchemy": "sqlalchemy",
    "halfmoon.events.sqlalchemy.testing": "sqlalchemy",
    "halfmoon.events.django": "django",
    "halfmoon.data": "pyarrow",
    "halfmoon.spark": "pyspark",
}
"""Modules that come with an extra, and what it installs."""


def public(module: object) -> list[str]:
    """Return the public names of a module, as the page defines them."""
    stated = getattr(module, "__all__", None)
    if stated is not None:
        return list(stated)
    return [name for name, value in vars(module).items() if name[0] != "_" and getattr(value, "__module__", "") == module.__name__]


def imports(source: str) -> list[tuple[str, str]]:
    """Return module and name of each import from Halfmoon; the name is empty where the module itself is imported."""
    pairs = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            pairs += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            pairs += [(alias.name, "") for alias in node.names]
    return [pair for pair in pairs if pair[0].partition(".")[0] == "halfmoon"]


@pytest.mark.parametrize("name", MODULES)
def test_a_public_module_and_its_names_are_there_and_have_docstrings(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    module = importlib.import_module(name)

    assert module.__doc__
    assert public(module)
    for stated in public(module):
        value = getattr(module, stated)
        assert inspect.getdoc(value) or not callable(value), f"{name}.{stated}"


def test_examples_of_pages_and_programs_import_from_public_modules_only() -> None:
    sources = [(path, block) for path in PAGES for block in re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.M | re.S)]
    sources += [(path, path.read_text()) for path in EXAMPLES]
    found = [(path.name, *pair) for path, source in sources for pair in imports(source)]
    wrong = [
        (page, module, name)
        for page, module, name in found
        if (page, name) != ("orders.py", "ClientTransport")  # the demo loses decisions on purpose
        and f"{module}.{name}" not in MODULES
        and (module not in MODULES or (name and name not in public(importlib.import_module(module))))
    ]

    assert len(found) > 60
    assert wrong == []
