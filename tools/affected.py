"""Tests that a change affects, nearest first: what ``make check`` runs. Reads git and imports; runs pytest with ``--run``.

A test is as far from a change as its imports are: 0 for tests that changed, and for the test module at the mirrored path of a
changed module; one more for each import between the changed module and the test. The nearest tests run first, until the time is
up, and pytest's last line says how many did not run. Tests marked slow or interop are left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.dealing import left_out
from tools.available import missing
from tools.tree import ROOT, files_of, importers_of, mirror

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
    importers, files = importers_of(root), files_of(root)
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
            test, steps = mirror(near), distances[near]
            if test in files:
                distances[test] = min(steps, distances.get(test, steps))
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


def _beside(file: str, files: frozenset[str]) -> list[str]:
    """Return the test modules of the nearest folder of tests at the mirrored place of a file."""
    for folder in Path(mirror(file)).parents:
        if found := [test for test in files if _is_test(test) and Path(test).is_relative_to(folder)]:
            return found
    return []


def _is_test(file: str) -> bool:
    return file.startswith("tests/") and Path(file).name.startswith("test_")


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
    unavailable = missing(tests)
    tests = [file for file in tests if file not in unavailable]
    tests, further = tests[:FILES_MAX], tests[FILES_MAX:]
    if not chosen.run:
        print("\n".join(tests))
        return 0
    if unknown:
        print(f"no test is known for: {', '.join(unknown)}", file=sys.stderr)
    if unavailable:
        packages = ", ".join(sorted({name for names in unavailable.values() for name in names}))
        print(f"{len(unavailable)} files of tests are left out, which need {packages}: make setup installs these", file=sys.stderr)
    if further:
        print(f"{len(further)} files of tests less directly affected are left to make quick, from {further[0]} on", file=sys.stderr)
    command = [
        "-m", "pytest", "-n", "2", "-p", "no:randomly", "-r", "fE", "-m", MARKS, "--hypothesis-profile", "quick",
        "--seconds", str(chosen.seconds), *for_pytest, *tests,
    ]  # fmt: skip
    return subprocess.run([sys.executable, *command], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
