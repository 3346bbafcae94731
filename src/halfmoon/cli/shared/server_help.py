"""`halfmoon serve`, `nameserver` and `broker` as commands of the group: their help, and messages about wrong options."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from halfmoon.cli.servers import HELP, OPTIONS, serve


def _command(name: str) -> typer.Typer:
    """Return a command made from the table of options."""

    def started(**values: Any) -> None:
        raise typer.Exit(serve(name, values))

    parameters, kinds = [], {}
    for option in OPTIONS[name]:
        kind: Any = list[str] if option.many else (str | None) if option.metavar else bool
        default: Any = [] if option.many else None if option.metavar else False
        shown = typer.Option(option.flag, metavar=option.metavar or None, help=option.why, show_default=option.default or False)
        kinds[option.name] = Annotated[kind, shown]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(option.name, keyword, default=default, annotation=kinds[option.name]))
    started.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    started.__annotations__ = kinds
    started.__doc__ = HELP[name]
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(name)(started)
    return app


app = {name: _command(name) for name in OPTIONS}
