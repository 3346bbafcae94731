"""Import graph of the tree: its Python files, their imports, and the test module that belongs to a source."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def mirror(file: str) -> str:
    """Return the path of the test module that belongs to a source file; it need not exist."""
    for part, place in (("src/halfmoon/", "tests/"), ("simulation/", "tests/simulation/"), ("tools/", "tests/tools/")):
        if file.startswith(part):
            folder, _, name = file.removeprefix(part).rpartition("/")
            name = f"{folder.rpartition('/')[2]}.py" if name == "__init__.py" else name
            return place + (f"{folder}/" if folder else "") + f"test_{name.lstrip('_')}"
    return ""


@cache
def files_of(root: Path) -> frozenset[str]:
    """Return the Python files of the tree."""
    places = ("src", "simulation", "tools", "tests", "benchmarks", "examples")
    return frozenset(path.relative_to(root).as_posix() for place in places for path in (root / place).rglob("*.py"))


@cache
def importers_of(root: Path) -> dict[str, set[str]]:
    """Return the files that import each file."""
    files = files_of(root)
    importers: dict[str, set[str]] = defaultdict(set)
    for file in files:
        for name in imports(ast.parse((root / file).read_bytes())):
            if (imported := file_of(name, files)) is not None:
                importers[imported].add(file)
    return importers


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a module or a statement imports, names inside of modules too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(name: str, files: frozenset[str]) -> str | None:
    """Return the file of a dotted name: a module, the module that a name is in, or a package."""
    path = name.replace(".", "/")
    for place in ("src/", ""):
        for dotted in (path, path.rpartition("/")[0]):
            for file in (f"{place}{dotted}.py", f"{place}{dotted}/__init__.py"):
                if file in files:
                    return file
    return None
