"""The mission list (`docs/mission.md`) and which of its lines a passing test proved in the last run.

`Recorder` is the pytest side: it notes the outcome of each test that carries ``@pytest.mark.mission(number, …)`` and merges
it into ``build/mission.json``. Run as a program, this file prints every line with its state; the last line reads ``N of 240``.
It judges results only, never the source of a test.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "mission.md"
RESULTS = ROOT / "build" / "mission.json"
_LINE = re.compile(r"^- (\d{3}-\d{2}) (.*)$", re.MULTILINE)


def lines(page: str) -> dict[str, str]:
    """Return the text of each line of the page by its number, in order. Raises ValueError when a number stands twice."""
    found = _LINE.findall(page)
    if len(found) != len({number for number, _ in found}):
        raise ValueError("a number stands twice in the mission list")
    return dict(found)


def states(numbers: Iterable[str], results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return each line's state: ``proved`` (a test passed, none failed), ``failing``, ``skipped`` or ``open`` (no test ran)."""
    outcomes: dict[str, set[str]] = {number: set() for number in numbers}
    for result in results.values():
        for number in result["lines"]:
            outcomes.setdefault(number, set()).add(result["outcome"])
    return {number: _state(found) for number, found in outcomes.items()}


def _state(outcomes: set[str]) -> str:
    if "failed" in outcomes:
        return "failing"
    if "passed" in outcomes:
        return "proved"
    return "skipped" if outcomes else "open"


class Recorder:
    """Notes the outcomes of one pytest run. ``known`` are the numbers that a mark may name."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = set(known)
        self._collected: set[str] = set()
        self._results: dict[str, dict[str, Any]] = {}

    def collected(self, node_id: str, numbers: list[str]) -> None:
        """Take note of a test before any is left out. Raises ValueError for a number that the list does not have."""
        if unknown := sorted(set(numbers) - self._known):
            raise ValueError(f"{node_id}: not in docs/mission.md: {', '.join(unknown)}")
        self._collected.add(node_id)

    def ended(self, node_id: str, numbers: list[str], outcome: str) -> None:
        """Take note of how one phase of a test ended: a test passed only when all its phases did."""
        result = self._results.setdefault(node_id, {"lines": numbers, "outcome": "passed"})
        if outcome != "passed" and result["outcome"] != "failed":
            result["outcome"] = outcome

    def again(self, node_id: str) -> None:
        """Forget how a test ended that is tried once more."""
        self._results.pop(node_id, None)

    def merged(self, earlier: Mapping[str, Any]) -> dict[str, Any]:
        """Return this run's results over those of earlier runs. Tests that are gone from a collected file are forgotten."""
        files = {node_id.partition("::")[0] for node_id in self._collected}
        kept = {n: dict(r) for n, r in earlier.items() if n in self._collected or n.partition("::")[0] not in files}
        return kept | self._results


def is_of_single_tests(arguments: Sequence[str], last_failed: bool) -> bool:
    """Whether a run leaves tests out of the files it collects: by their names (``file::name``), or by how the last run ended."""
    return last_failed or any("::" in argument for argument in arguments)


def load(path: Path = RESULTS) -> dict[str, Any]:
    """Return the results of the runs so far; none when nothing ran."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def save(results: Mapping[str, Any], path: Path = RESULTS) -> None:
    """Keep the results for the next run and for `make mission`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(results), indent=1, sort_keys=True))


def main() -> int:
    """Print the list. Always 0: a line that is still open is not an error."""
    texts = lines(PAGE.read_text())
    found = states(texts, load())
    for number, text in texts.items():
        print(f"{found[number]:8} {number} {text}")
    print(f"{sum(found[number] == 'proved' for number in texts)} of {len(texts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
