"""`halfmoon docs`: pages of this version, from a wheel or a clone, by name."""

from __future__ import annotations

import pytest

from halfmoon.cli import docs
from halfmoon.errors import UsageError
from tests.cli.shared.test_output import Terminal


def test_pages_are_listed_with_their_titles_and_shown(run_alone):
    listed = {each["page"]: each["title"] for each in run_alone("docs", "--json").json()}

    assert listed["access"] == "Access control"
    assert "tutorials/fastapi" in listed
    assert not any(name.startswith("decisions/") for name in listed)
    assert run_alone("docs", "access").out.startswith("# Access control\n")
    assert run_alone("docs", "docs/access.md").out == run_alone("docs", "access").out
    assert run_alone("docs", "access", "--path").out.strip().endswith("access.md")


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("halfmoon.service", "# A broker with its name server"), ("halfmoon-broker.service", "# A broker alone"),
        ("halfmoon-nameserver.service", "# A name server alone"), ("alerts.yml", "#"), ("prometheus.yml", "#"),
        ("grafana.json", "{"),
    ],
)  # fmt: skip
def test_files_for_operators_are_printed(run_alone, name, begins):
    assert run_alone("docs", name).out.startswith(begins)


def test_a_page_that_is_missing_is_refused_with_near_names(run_alone):
    ran = run_alone("docs", "acess")

    assert ran.code == 2
    assert "there is no page 'acess'; did you mean access" in ran.err


def test_a_terminal_gets_the_pager(run_alone, monkeypatch):
    shown = []
    monkeypatch.setattr("click.echo_via_pager", shown.append)
    monkeypatch.setattr("sys.stdout", Terminal())

    docs.app.commands["docs"].main(["access"], prog_name="halfmoon", standalone_mode=False)

    assert shown[0].startswith("# Access control")


def test_the_pages_of_a_wheel_stand_in_the_package(tmp_path):
    (tmp_path / "documentation").mkdir()
    (tmp_path / "documentation" / "page.md").write_text("# A page\n")

    assert docs.pages(tmp_path) == {"page": tmp_path / "documentation" / "page.md"}
    with pytest.raises(UsageError, match="install halfmoon from a wheel"):
        docs.pages(tmp_path / "documentation" / "empty" / "package")
