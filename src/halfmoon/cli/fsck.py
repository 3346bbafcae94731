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
from halfmoon.programs.verify import Problem, problems

app = typer.Typer(add_completion=False)


Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The data directory of a stopped broker, Halfmoon's or Apache's.")]
Config = Annotated[list[Path] | None, typer.Option("--config", metavar="FILE", help="The broker's settings: TOML or broker.conf.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the broker; may be repeated.")
]


@app.command()
def fsck(
    directory: Directory,
    most: Annotated[int, typer.Option("--max", min=1, max=1_000_000, help="Stop after N problems.")] = 1000,
    config: Config = None,
    assignments: Assignments = None,
    as_json: Json = False,
) -> None:
    """Check every record of the log, and compare every index with it.

    Writes nothing. Exits with 1 and lists the problems if it finds any; with 2 if it cannot read the store to its end. What the
    files alone cannot decide is listed as unknown and not counted. If the broker uses its own sizes of index files
    (maxHashSlotNum, maxIndexNum), pass its settings: --config or --set.

    Example: halfmoon fsck ./data
    """
    settings = configuration(BROKER, files=config or (), assignments=assignments or ()).store
    certain: list[Problem] = []
    unknown: list[Problem] = []
    try:
        for problem in problems(directory, settings):
            listed = certain if problem.certain else unknown
            listed.append(problem)
            if not as_json and len(listed) <= most:
                say(f"{'' if problem.certain else 'unknown: '}{problem.place}: {problem.what}: {problem.reason}")
            if len(certain) > most:
                break
    except (OSError, StoreError) as exc:
        say(f"{directory} could not be checked to its end: {exc}", error=True)
        raise typer.Exit(2) from None
    more = len(certain) > most
    if as_json:
        show_json({
            "sound": not certain, "problems": [*map(_shown, certain[:most])], "unknown": [*map(_shown, unknown[:most])],
            "more": more,
        })  # fmt: skip
    elif certain:
        say(f"{'at least ' if more else ''}{min(len(certain), most):,} problems")
    else:
        say(f"{directory} is sound")
    if certain:
        raise typer.Exit(1)


def _shown(problem: Problem) -> dict[str, str]:
    return {"place": problem.place, "what": problem.what, "reason": problem.reason}
