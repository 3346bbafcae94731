"""Options declared together: Typer sees each, the command gets one object."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from halfmoon.cli.shared.option_groups import grouped


@dataclass(frozen=True, kw_only=True)
class Paging:
    first: Annotated[int, typer.Option("--first", "-f")] = 1
    names: Annotated[list[str] | None, typer.Option("--name")] = None

    def __post_init__(self) -> None:
        if self.first < 1:
            raise typer.BadParameter("pages are counted from 1")


app = typer.Typer()


@app.command()
@grouped
def show(
    topic: Annotated[str, typer.Argument()],
    limit: Annotated[int, typer.Option("--limit")] = 5,
    *,
    paging: Paging,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Show pages."""
    typer.echo(repr((topic, limit, paging, as_json)))


def test_options_of_a_group_reach_the_command_as_one_object():
    said = CliRunner().invoke(app, ["orders", "-f", "3", "--name", "a", "--name", "b", "--json"])

    assert said.output == repr(("orders", 5, Paging(first=3, names=["a", "b"]), True)) + "\n"


def test_options_that_are_not_given_have_the_defaults_of_the_group():
    assert CliRunner().invoke(app, ["orders"]).output == repr(("orders", 5, Paging(), False)) + "\n"


def test_typer_sees_the_fields_where_the_parameter_stands():
    assert list(inspect.signature(show).parameters) == ["topic", "limit", "first", "names", "as_json"]
    assert (show.__name__, show.__doc__) == ("show", "Show pages.")


@pytest.mark.parametrize("given", [["--first", "0"], ["--first", "x"]])
def test_what_a_group_refuses_ends_the_command_before_it_begins(given):
    said = CliRunner().invoke(app, ["orders", *given])

    assert said.exit_code == 2
    assert "orders" not in said.output.replace("show", "")
