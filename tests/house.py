"""Counts what `tests.test_house` bounds in the package and the simulation: ``python -m tests.house [PREFIX]`` prints it.

Sizes of folders, length and branches of functions, and the test module that each source file should have. Changes nothing.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FILES_MAX, FUNCTION_LINES_MAX, BRANCHES_MAX = 15, 45, 15
SHORT_INIT_LINES = 40
"""A package's ``__init__`` shorter than this only says what the package holds, or passes its names on."""

_BRANCHES = (
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.BoolOp, ast.comprehension, ast.match_case
)  # fmt: skip
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Function(NamedTuple):
    """One function: its lines with signature and docstring, and its branches without those of functions inside it."""

    name: str
    lines: int
    branches: int


def sources() -> list[Path]:
    """Return the Python files of the package and of the simulation."""
    return sorted(path for part in ("src", "simulation") for path in (ROOT / part).rglob("*.py"))


def name_of(path: Path) -> str:
    """Return a file's path inside the repository."""
    return path.relative_to(ROOT).as_posix()


def crowded() -> dict[str, int]:
    """Return the folders with more than `FILES_MAX` Python files, and how many they have."""
    sizes = Counter(name_of(path.parent) for path in sources())
    return {folder: size for folder, size in sizes.items() if size > FILES_MAX}


@cache
def functions() -> dict[str, Function]:
    """Return all functions and methods, by file and qualified name."""
    return {f"{name_of(path)}: {function.name}": function for path in sources() for function in functions_of(path.read_text())}


def functions_of(source: str) -> list[Function]:
    """Return the functions of one file, those inside others too."""
    return list(_functions(ast.parse(source), ""))


def _functions(node: ast.AST, prefix: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        name = f"{prefix}{child.name}" if isinstance(child, _DEFINITIONS) else prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(name, (child.end_lineno or 0) - child.lineno + 1, _branches(child))
        yield from _functions(child, f"{name}." if isinstance(child, _DEFINITIONS) else prefix)


def _branches(node: ast.AST) -> int:
    count = 0
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _DEFINITIONS):
            count += len(child.values) - 1 if isinstance(child, ast.BoolOp) else isinstance(child, _BRANCHES)
            count += _branches(child)
    return count


def long_functions() -> dict[str, int]:
    """Return the functions with more than `FUNCTION_LINES_MAX` lines."""
    return {place: function.lines for place, function in functions().items() if function.lines > FUNCTION_LINES_MAX}


def branching_functions() -> dict[str, int]:
    """Return the functions with more than `BRANCHES_MAX` branches."""
    return {place: function.branches for place, function in functions().items() if function.branches > BRANCHES_MAX}


def test_module_of(path: str) -> str:
    """Return where the tests of a source file belong: the same path under ``tests/``, a package's beside its folder."""
    folder, _, file = ("tests/" + path.removeprefix("src/halfmoon/")).rpartition("/")
    if file == "__init__.py":
        folder, _, name = folder.rpartition("/")
        return f"{folder}/test_{name}.py" if folder else "tests/test_halfmoon.py"
    return f"{folder}/test_{file}"


def untested() -> list[str]:
    """Return the source files without a test module; ``__main__`` and short ``__init__`` files need none."""
    return [
        name_of(path)
        for path in sources()
        if path.name != "__main__.py"
        and not (path.name == "__init__.py" and len(path.read_text().splitlines()) < SHORT_INIT_LINES)
        and not (ROOT / test_module_of(name_of(path))).exists()
    ]


def report(prefix: str) -> str:
    """Return all counts as text, of the files whose path begins with ``prefix``."""
    tables = {
        f"more than {FILES_MAX} files in a folder": crowded(),
        f"functions over {FUNCTION_LINES_MAX} lines": long_functions(),
        f"functions over {BRANCHES_MAX} branches": branching_functions(),
        "source files without a test module": dict.fromkeys(untested(), 0),
    }
    lines: list[str] = []
    for title, table in tables.items():
        rows = sorted((-count, place) for place, count in table.items() if place.startswith(prefix))
        lines += [f"{title}: {len(rows)}", *(f"  {-count or '':>4} {place}" for count, place in rows)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(sys.argv[1] if len(sys.argv) > 1 else ""))
