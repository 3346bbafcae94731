"""`halfmoon docs`: pages of the documentation, and files for operators, that belong to the installed version."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Annotated

import click

import halfmoon
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import Json
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.errors import UsageError

KINDS = (".md", ".service", ".yml", ".json")
"""Suffixes of pages and of files for operators; names of pages are given without theirs."""

app = App()


@app.command()
def docs(
    page: Annotated[str | None, Argument(metavar="[PAGE]", help="Name of the page; without it, all are listed.")] = None,
    path: Annotated[bool, Option("--path", help="Print the path of the page's file, which is Markdown.")] = False,
    as_json: Json = False,
) -> None:
    """Show a page of the documentation that belongs to this version, or list all pages.

    On a terminal a page is shown by the pager ($PAGER). The systemd units, the alert rules, the configuration of Prometheus and the
    Grafana dashboard are listed and printed, too.

    Example: halfmoon docs access

    Example: halfmoon docs alerts.yml > /etc/prometheus/halfmoon.yml

    Example: halfmoon docs commands | grep -A 20 'halfmoon consume'
    """
    found = pages(Path(halfmoon.__file__).parent)
    if page is None:
        titles = {name: _title(file) for name, file in found.items()}
        if as_json:
            show_json([{"page": name, "title": title, "path": str(found[name])} for name, title in titles.items()])
        else:
            show_table("", ("page", "title"), titles.items())
        return
    file = found.get(page.removeprefix("docs/").removesuffix(".md"))
    if file is None:
        near = get_close_matches(page, found, n=3)
        raise UsageError(f"there is no page {page!r}" + (f"; did you mean {' or '.join(near)}?" if near else ": see halfmoon docs"))
    if path:
        say(str(file))
    elif as_json:
        show_json({"page": page, "title": _title(file), "path": str(file), "text": file.read_text(encoding="utf-8")})
    elif sys.stdout.isatty():
        click.echo_via_pager(file.read_text(encoding="utf-8"))
    else:
        click.echo(file.read_text(encoding="utf-8"), nl=False)


def pages(package: Path) -> dict[str, Path]:
    """Return pages and files by name: those in the package as the wheel has them, or those of the clone that it is installed from.

    Raises UsageError: there are none.
    """
    clone = package.parents[1]
    for directories in ([package / "documentation"], [clone / "docs", clone / "monitoring", clone / "packaging"]):
        files = [
            (file, file.relative_to(place)) for place in directories for kind in KINDS for file in sorted(place.rglob(f"*{kind}"))
        ]
        found = {str(PurePosixPath(name)).removesuffix(".md"): file for file, name in files if name.parts[0] != "decisions"}
        if found:
            return found
    raise UsageError("the pages are missing: install halfmoon from a wheel, or run it in a clone")


def _title(file: Path) -> str:
    """Return the first heading of a page; of another file its first comment, or nothing."""
    with file.open(encoding="utf-8") as lines:
        return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), "")
