"""What runs in workflows is pinned to commits: a tag is whatever its owner points it at."""

from __future__ import annotations

import re

import pytest

from tests.house import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_to_a_commit(path):
    uses = re.findall(r"^\s*-?\s*uses:\s*(.+)$", path.read_text(), re.MULTILINE)

    assert uses
    assert [text for text in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", text)] == []
