"""docs/architecture.md names only files that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PLACES = [ROOT, ROOT / "src" / "halfmoon"]


def test_every_file_and_folder_that_the_page_names_is_there():
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", PAGE))

    assert len(named) > 40
    assert {name for name in named if not any((place / name).exists() for place in PLACES)} == set()
