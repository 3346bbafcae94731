"""Files of the tree that can be checked with the packages that are installed: all of them, or fewer after ``make setup-light``.

A source needs the packages that it imports. A test also needs those of the modules that it loads, and of the module that it tests.

    .venv/bin/python -m tools.available        sources for mypy, separated by spaces; nothing where all are available
    .venv/bin/python -m tools.available FILE   whether a program can run (exit code 0), or which packages it lacks (1)
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tools.tree import ROOT, file_of, files_of, imports, mirror


@cache
def _missing(package: str) -> bool:
    """Whether a top-level name can not be imported here."""
    return package not in sys.stdlib_module_names and find_spec(package) is None


def missing(files: Iterable[str], root: Path = ROOT) -> dict[str, list[str]]:
    """Return which packages each file needs that are not installed; files that need none are left out."""
    sources, known = _sources(root), files_of(root)
    found = {}
    for file in files:
        loaded = _loaded(file, root) if file.startswith("tests/") else {file}
        tested = {file, *sources.get(file, ())}
        names = {name for each in loaded | tested for name in _top(each, root, whole=each in tested)}
        if absent := sorted(name for name in names if _missing(name) and file_of(name, known) is None):
            found[file] = absent
    return found


@cache
def _sources(root: Path) -> dict[str, list[str]]:
    """Return the sources of which each test module is the mirror."""
    found: dict[str, list[str]] = {}
    for file in files_of(root):
        if (test := mirror(file)) in files_of(root):
            found.setdefault(test, []).append(file)
    return found


def _loaded(file: str, root: Path) -> set[str]:
    """Return the files that an import of one loads, itself and the ``conftest.py`` above it included."""
    files = files_of(root)
    waiting = [file, *(test for folder in Path(file).parents if (test := (folder / "conftest.py").as_posix()) in files)]
    loaded: set[str] = set()
    while waiting:
        if (one := waiting.pop()) not in loaded:
            loaded.add(one)
            waiting += [near for name in _names(one, root, whole=False) if (near := file_of(name, files)) is not None]
    return loaded


def _top(file: str, root: Path, *, whole: bool) -> set[str]:
    return {name.partition(".")[0] for name in _names(file, root, whole=whole)}


@cache
def _names(file: str, root: Path, *, whole: bool) -> frozenset[str]:
    """Return the dotted names that a file imports: when it is loaded, or in its functions as well."""
    tree = ast.parse((root / file).read_bytes())
    return frozenset(imports(tree) if whole else (name for node in _at_once(tree.body) for name in imports(node)))


def _at_once(statements: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run when a module is loaded, but for those under a condition or in a ``try``."""
    for statement in statements:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement


def lacks(file: str, root: Path = ROOT) -> list[str]:
    """Return the packages that a program loads and that are not installed."""
    known = files_of(root)
    names = {name for each in _loaded(file, root) for name in _top(each, root, whole=False)}
    return sorted(name for name in names if _missing(name) and file_of(name, known) is None)


def main(arguments: Sequence[str]) -> int:
    """Print the sources that mypy can check, and name on standard error the packages whose sources, or programs, are left out."""
    if arguments:
        if absent := lacks(arguments[0]):
            print(f"{arguments[0]} is left out without {', '.join(absent)}: make setup installs these", file=sys.stderr)
        return 1 if absent else 0
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    untyped = {name.removesuffix(".*") for override in mypy["overrides"] for name in override["module"]}
    known = sorted(file for file in files_of(ROOT) if any(file == place or file.startswith(f"{place}/") for place in mypy["files"]))
    if left := {file: names for file, needed in missing(known).items() if (names := {*needed} - untyped)}:
        packages = ", ".join(sorted(set().union(*left.values())))
        print(f"{len(left)} files are not type-checked without {packages}: make setup installs these", file=sys.stderr)
        print(*(file for file in known if file not in left))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
