"""`halfmoon fsck`: verify a stopped store, whoever wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import Json
from halfmoon.cli.shared.output import show_json
from halfmoon.errors import StoreError
from halfmoon.programs.configuration import BROKER, configuration
from halfmoon.programs.verify import Finding, findings

app = typer.Typer(add_completion=False)


@app.command()
def fsck(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The data directory of a stopped broker, Halfmoon's or Apache's.")
    ],
    most: Annotated[int, typer.Option("--max", min=1, max=1_000_000, help="Stop after N findings.")] = 1000,
    config: Annotated[
        list[Path] | None, typer.Option("--config", metavar="FILE", help="The broker's settings: TOML or broker.conf.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the broker; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every record of the log, and compare every index with it.

    Writes nothing. Exit code 1 when something is wrong, with the places; 2 when the store could not be read to its end. What its
    files do not tell is said, and not counted. A broker whose index files have other sizes than usual
    (maxHashSlotNum, maxIndexNum) is read with its own settings: --config or --set.

    Example: halfmoon fsck ./data
    """
    settings = configuration(BROKER, files=config or (), assignments=assignments or ()).store
    found: list[Finding] = []
    unknown: list[Finding] = []
    try:
        for each in findings(directory, settings):
            (found if each.certain else unknown).append(each)
            if not as_json and len(found if each.certain else unknown) <= most:
                say(f"{'' if each.certain else 'not known: '}{each.place}: {each.what}: {each.reason}")
            if len(found) > most:
                break
    except (OSError, StoreError) as exc:
        say(f"{directory} could not be checked to its end: {exc}", error=True)
        raise typer.Exit(2) from None
    more = len(found) > most
    if as_json:
        shown, said = [[_shown(each) for each in part[:most]] for part in (found, unknown)]
        show_json({"sound": not found, "findings": shown, "unknown": said, "more": more})
    else:
        say(f"{'at least ' if more else ''}{min(len(found), most):,} findings" if found else f"{directory} is sound")
    if found:
        raise typer.Exit(1)


def _shown(each: Finding) -> dict[str, str]:
    return {"place": each.place, "what": each.what, "reason": each.reason}
