"""Tests that a change affects, nearest first: what ``make check`` runs. Reads git and imports; runs pytest with ``--run``.

A test is as far from a change as its imports are: 0 for tests that changed, and for the test module at the mirrored path of a
changed module; one more for each import between the changed module and the test. The nearest tests run first, until the time is
up, and pytest's last line says how many did not run. Tests marked slow or interop are left out.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.dealing import left_out

ROOT = Path(__file__).resolve().parent.parent
MARKS = "not slow and not interop"
HOUSE = ("tests/test_house.py", "tests/test_imports.py", "tests/test_clocks.py")
"""Tests of the whole tree, which run after each change."""
STANDS_FOR = {
    "native": "src/halfmoon/hot.py",
    "docs": "tests/docs/reader.py",
    "Makefile": "tests/tools/test_make_docs.py",
    "pyproject.toml": "tests/tools/test_install.py",
}
"""Python file that is taken as changed with files that are no Python, by the first part of their path."""
SECONDS, FILES_MAX = 30, 120
"""Time for the tests, and how many files of them are collected, which takes time of its own."""


def changed(base: str | None) -> list[str]:
    """Return the paths that differ from ``base``, those that git does not track yet included.

    Without ``base``: what is not committed, or the last commit if all is.
    """
    untracked = _git("ls-files", "--others", "--exclude-standard")
    paths = {*_git("diff", "--name-only", base or "HEAD"), *untracked}
    return sorted(paths or _git("diff", "--name-only", "HEAD~1"))


def affected(paths: Iterable[str], root: Path = ROOT) -> tuple[dict[str, int], list[str]]:
    """Return the distance of each affected test module, and the changed paths for which no test is known."""
    importers, files = _importers(root), _files(root)
    distances: dict[str, int] = {}
    unknown = []
    for path in paths:
        if (file := _python_file(path, files)) is None:
            unknown.append(path)
            continue
        reached = _reached(file, importers, files)
        tests = {test: steps for test, steps in reached.items() if _is_test(test)}
        for test, steps in (tests or dict.fromkeys(_beside(file, files), 1)).items():  # none: started by its name, as a command
            distances[test] = min(steps, distances.get(test, steps))
    return distances, unknown


def in_order(distances: dict[str, int]) -> list[str]:
    """Return test files, those of the whole tree and then the nearest first."""
    return [*HOUSE, *sorted(distances.keys() - set(HOUSE), key=lambda file: (distances[file], file))]


def _reached(changed: str, importers: dict[str, set[str]], files: frozenset[str]) -> dict[str, int]:
    """Return how many imports each file is away from a changed one; a test module at a mirrored path is as near as its source."""
    distances = {changed: 0}
    ring = [changed]
    while ring:
        for near in ring:
            mirror, steps = _mirror(near), distances[near]
            if mirror in files:
                distances[mirror] = min(steps, distances.get(mirror, steps))
        steps = distances[ring[0]] + 1
        ring = [file for near in ring for file in importers.get(near, ()) if distances.setdefault(file, steps) == steps]
        ring = list(dict.fromkeys(ring))
    return distances


def _python_file(path: str, files: frozenset[str]) -> str | None:
    """Return the Python file that a changed path stands for: itself, the package it lies in, or None."""
    if path in files:
        return path
    if (known := STANDS_FOR.get(path.split("/")[0])) is not None:
        return known
    packages = (f"{folder.as_posix()}/__init__.py" for folder in Path(path).parents)
    return next((package for package in packages if package in files), None)


def _mirror(file: str) -> str:
    """Return the path of the test module that belongs to a source file; it need not exist."""
    for part, place in (("src/halfmoon/", "tests/"), ("simulation/", "tests/simulation/"), ("tools/", "tests/tools/")):
        if file.startswith(part):
            folder, _, name = file.removeprefix(part).rpartition("/")
            name = f"{folder.rpartition('/')[2]}.py" if name == "__init__.py" else name
            return place + (f"{folder}/" if folder else "") + f"test_{name.lstrip('_')}"
    return ""


def _beside(file: str, files: frozenset[str]) -> list[str]:
    """Return the test modules of the nearest folder of tests at the mirrored place of a file."""
    for folder in Path(_mirror(file)).parents:
        if found := [test for test in files if _is_test(test) and Path(test).is_relative_to(folder)]:
            return found
    return []


def _is_test(file: str) -> bool:
    return file.startswith("tests/") and Path(file).name.startswith("test_")


@cache
def _files(root: Path) -> frozenset[str]:
    """Return the Python files of the tree."""
    places = ("src", "simulation", "tools", "tests", "benchmarks", "examples")
    return frozenset(path.relative_to(root).as_posix() for place in places for path in (root / place).rglob("*.py"))


@cache
def _importers(root: Path) -> dict[str, set[str]]:
    """Return the files that import each file."""
    files = _files(root)
    importers: dict[str, set[str]] = defaultdict(set)
    for file in files:
        for name in _imports(ast.parse((root / file).read_bytes())):
            if (imported := _file_of(name, files)) is not None:
                importers[imported].add(file)
    return importers


def _imports(tree: ast.Module) -> Iterator[str]:
    """Yield the dotted names that a module imports, names inside of modules too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file_of(name: str, files: frozenset[str]) -> str | None:
    """Return the file of a dotted name: a module, the module that a name is in, or a package."""
    path = name.replace(".", "/")
    for place in ("src/", ""):
        for dotted in (path, path.rpartition("/")[0]):
            for file in (f"{place}{dotted}.py", f"{place}{dotted}/__init__.py"):
                if file in files:
                    return file
    return None


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def main(arguments: list[str] | None = None) -> int:
    """Print the affected test modules, nearest first, or run them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", help="commit to compare with (default: what is not committed, or else the last commit)")
    parser.add_argument("--run", action="store_true", help="run the tests")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="start no test after this time (default: %(default)s)")
    chosen, for_pytest = parser.parse_known_args(arguments)
    distances, unknown = affected(changed(chosen.base))
    tests = [file for file in in_order(distances) if not left_out(file, (ROOT / file).read_text(), MARKS)]
    tests, further = tests[:FILES_MAX], tests[FILES_MAX:]
    if not chosen.run:
        print("\n".join(tests))
        return 0
    if unknown:
        print(f"no test is known for: {', '.join(unknown)}", file=sys.stderr)
    if further:
        print(f"{len(further)} files of tests less directly affected are left to make quick, from {further[0]} on", file=sys.stderr)
    command = [
        "-m", "pytest", "-n", "2", "-p", "no:randomly", "-r", "fE", "-m", MARKS, "--hypothesis-profile", "quick",
        "--seconds", str(chosen.seconds), *for_pytest, *tests,
    ]  # fmt: skip
    return subprocess.run([sys.executable, *command], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
