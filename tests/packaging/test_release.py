"""What a release publishes: sdist, wheel and SBOM, checked as an index checks them. The wheels of other platforms are left out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT
from tests.packaging.test_wheel import pins

pytestmark = pytest.mark.slow

URL = "https://localhost/halfmoon"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a release that ``HALFMOON_URL`` names the repository of."""
    directory = tmp_path_factory.mktemp("release")
    command = ["make", "--no-print-directory", "release", "TARGETS=", f"DIST={directory}"]
    ran = subprocess.run(command, cwd=ROOT, env={**os.environ, "HALFMOON_URL": URL}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("PASSED") == 2, ran.stdout
    return directory


def test_the_description_of_a_release_leads_to_its_version_and_has_no_relative_link(released: Path) -> None:
    (wheel,) = released.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith("/METADATA"))
        metadata = Parser().parsestr(files.read(name).decode())

    urls = dict(text.split(", ", 1) for text in metadata.get_all("Project-URL") or [])
    version, description = metadata["Version"], str(metadata.get_payload())
    assert {"Documentation", "Source", "Issues", "Changes"} == urls.keys()
    assert urls["Changes"] == f"{URL}/blob/v{version}/CHANGELOG.md"
    assert f"]({URL}/blob/v{version}/docs/install.md)" in description
    assert f"]({URL}/raw/v{version}/docs/images/demo.png)" in description
    assert [link for link in re.findall(r"\]\(([^)\s]+)\)", description) if not link.startswith(("https://", "#"))] == []


def test_a_wheel_has_the_pages_and_what_operators_need(released: Path) -> None:
    (wheel,) = released.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = {name.removeprefix("halfmoon/documentation/") for name in files.namelist() if "/documentation/" in name}

    assert {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").glob("*.md")} <= names
    assert {"halfmoon.service", "halfmoon-broker.service", "halfmoon-nameserver.service"} <= names
    assert {"alerts.yml", "grafana.json", "prometheus.yml"} <= names


def test_the_sdist_holds_what_git_holds(released: Path) -> None:
    """So that who builds a wheel from it, or runs the tests, misses nothing."""
    with tarfile.open(next(released.glob("*.tar.gz"))) as files:
        held = {name.partition("/")[2] for name in files.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    elsewhere = (".github/", ".ci/", "docs/images/console")

    assert [name for name in tracked if name and not name.startswith(elsewhere) and name not in held] == []


def test_the_sbom_lists_every_package_that_is_pinned_for_the_wheel(released: Path) -> None:
    components = json.loads((released / "halfmoon.cdx.json").read_text())["components"]
    pinned = {name: re.match(r"\S+==(\S+)", line) for name, line in pins("constraints-base.txt").items()}

    assert {each["name"]: each["version"] for each in components} == {name: found[1] for name, found in pinned.items() if found}
