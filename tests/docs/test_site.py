"""The documentation as a site: every link leads somewhere, every page is found from another, nothing is fetched from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make site` builds it."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    return place


def test_every_page_is_there_and_the_readme_is_the_first(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not (site / page).exists()] == []
    assert "A message stays half until your transaction commits" in (site / "index.html").read_text()


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b[^>]*\brel=\"(?:stylesheet|preconnect)\"[^>]*//"
    )
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text())] == []


def test_every_link_within_the_site_leads_to_a_file(site: Path) -> None:
    lost = set()
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # served from any place, so its links begin at the root
            continue
        for link in re.findall(r"\b(?:href|src)=\"([^\"#?]+)", page.read_text()):
            if not re.match(r"\w+:|//", link) and not (page.parent / link).exists():
                lost.add(f"{page.relative_to(site)}: {link}")
    assert lost == set()
