"""`halfmoon docs`: pages of the documentation that belong to the installed version."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import click

import halfmoon
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import Json
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.errors import UsageError

app = App()


@app.command()
def docs(
    page: Annotated[str | None, Argument(metavar="[PAGE]", help="Name of the page; without it, all are listed.")] = None,
    path: Annotated[bool, Option("--path", help="Print the path of the page's file, which is Markdown.")] = False,
    as_json: Json = False,
) -> None:
    """Show a page of the documentation that belongs to this version, or list all pages.

    On a terminal a page is shown by the pager ($PAGER).

    Example: halfmoon docs access

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
    """Return the pages by name: those in the package as the wheel has them, or those of the clone that it is installed from.

    Raises UsageError: there are none.
    """
    for directory in (package / "documentation", package.parents[1] / "docs"):
        found = {file.relative_to(directory).with_suffix("").as_posix(): file for file in sorted(directory.rglob("*.md"))}
        if found:
            return {name: file for name, file in found.items() if not name.startswith("decisions/")}
    raise UsageError("the pages are missing: install halfmoon from a wheel, or run it in a clone")


def _title(file: Path) -> str:
    """Return the first heading of a page."""
    with file.open(encoding="utf-8") as lines:
        return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), "")
