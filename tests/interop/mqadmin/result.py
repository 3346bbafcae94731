"""The recorded result of the comparison: which calls print the same, and why the others do not. Reads a file, runs nothing."""

from __future__ import annotations

from pathlib import Path

from tests.interop.mqadmin.commands import NUMBERED, mark

RESULT = Path(__file__).resolve().with_name("result.json")


def result(same: set[str]) -> list[dict[str, str]]:
    """Return one entry a call: the call, ``same``, ``differs``, ``open`` or ``wrong`` (it differs without a mark), the reason."""
    found = []
    for call in NUMBERED:
        expected, reason = mark(call)
        outcome = "same" if call in same else "wrong" if expected == "same" else expected
        found.append({"call": call, "result": outcome, **({"reason": reason} if outcome != "same" else {})})
    return found
