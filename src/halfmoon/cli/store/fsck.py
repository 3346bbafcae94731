"""`halfmoon fsck`: verifies a stopped store, Halfmoon's or Apache's, and repairs it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import click

from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import Json, Yes, check_terminal, confirm
from halfmoon.cli.shared.output import report, show_json
from halfmoon.cli.store.progress import ProgressLine
from halfmoon.errors import StoreError
from halfmoon.programs.configuration import BROKER, ServerSettings, configuration
from halfmoon.programs.repair import Plan, repair_directory
from halfmoon.programs.verify import Problem, check_store, problems
from halfmoon.shown.texts import count_text

app = App()


Directory = Annotated[Path, Argument(metavar="DIR", help="The data directory of a stopped broker, Halfmoon's or Apache's.")]
Config = Annotated[list[Path] | None, Option("--config", metavar="FILE", help="The broker's settings: TOML or broker.conf.")]
Assignments = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="A setting of the broker; may be repeated.")]


@app.command()
def fsck(
    directory: Directory,
    most: Annotated[int, Option("--max", min=1, max=1_000_000, help="Stop after N problems.")] = 1000,
    mend: Annotated[bool, Option("--repair", help="Repair the store, after showing the plan.")] = False,
    into: Annotated[
        Path | None, Option("--into", metavar="NEWDIR", help="With --repair: copy the store there, and repair the copy.")
    ] = None,
    yes: Yes = False,
    config: Config = None,
    assignments: Assignments = None,
    as_json: Json = False,
) -> None:
    """Check every record of the log, and compare every index with it.

    Exits with 1 and lists the problems if it finds any; with 2 if it cannot read the store to its end. Problems that the files
    alone cannot decide are listed as unknown and not counted. Writes nothing without --repair. If the broker uses its own sizes
    of index files (maxHashSlotNum, maxIndexNum), pass its settings: --config or --set. For a repair, which starts a broker, so
    with its messageDelayLevel.

    With --repair it shows the problems, the repair and its losses, asks for confirmation, and repairs: queues, the key index and
    the transaction index are rebuilt from the log, damaged tables are replaced by their older copy, and readers skip damaged parts
    of the log. Removed parts of the store stay in a folder repaired-TIME inside it. Exits with 0 if everything is repaired.

    Example: halfmoon fsck ./data
    """
    settings = configuration(BROKER, files=config or (), assignments=assignments or ())
    if into is not None and not mend:
        raise click.BadParameter("--into needs --repair")
    check_terminal(f"mend {into or directory}", yes=yes or not mend)
    try:
        if mend:
            left = _repair(directory, into, settings, yes=yes, as_json=as_json)
            _show_left(into or directory, left, most, as_json=as_json)
        else:
            _check(directory, settings, most, as_json=as_json)
    except (OSError, StoreError) as exc:
        report(StoreError(f"{directory} could not be {'mended' if mend else 'checked to its end'}: {exc}"), as_json=as_json)
        raise click.exceptions.Exit(2) from None


def _check(directory: Path, settings: ServerSettings, most: int, *, as_json: bool) -> None:
    """List the problems. Raises click.exceptions.Exit (1) if anything certain is."""
    certain: list[Problem] = []
    unknown: list[Problem] = []
    with ProgressLine("checked") as progress:
        for problem in problems(directory, settings.store, progress.show):
            listed = certain if problem.certain else unknown
            listed.append(problem)
            if not as_json and len(listed) <= most:
                progress.clear()
                say(f"{'' if problem.certain else 'unknown: '}{problem.place}: {problem.what}: {problem.reason}")
            if len(certain) > most:
                break
    more = len(certain) > most
    if as_json:
        show_json({
            "sound": not certain, "problems": [*map(_shown, certain[:most])], "unknown": [*map(_shown, unknown[:most])],
            "more": more,
        })  # fmt: skip
    elif certain:
        say(f"{'at least ' if more else ''}{_count(min(len(certain), most))}")
    else:
        say(f"{directory} is sound")
    if certain:
        raise click.exceptions.Exit(1)


def _repair(directory: Path, into: Path | None, settings: ServerSettings, *, yes: bool, as_json: bool) -> list[Problem]:
    """Repair a store; return the remaining problems. Raises click.Abort if it is declined."""
    check_store(directory)

    def agree(plan: Plan) -> bool:
        progress.clear()
        for step in plan.steps:
            say(f"{step.place}: {step.why}", error=as_json)
            say(f"  to do: {step.action}", error=as_json)
            say(f"  lost:  {step.lost}", error=as_json)
        confirm(f"mend {into or directory} like this", yes=yes)
        return True

    def tell(text: str) -> None:
        progress.clear()
        say(text, error=True)

    with ProgressLine("checked") as progress:
        now = time.time_ns() // 1_000_000
        return repair_directory(directory, into, settings, now, agree=agree, say=tell, progress=progress.show)


def _show_left(directory: Path, left: list[Problem], most: int, *, as_json: bool) -> None:
    """List the problems that a repair could not solve. Raises click.exceptions.Exit (1) if there is something."""
    if as_json:
        show_json({"sound": not left, "problems": [*map(_shown, left[:most])], "unknown": [], "more": len(left) > most})
    else:
        _list(left[:most])
        say(f"left: {_count(len(left))}" if left else f"{directory} is sound")
    if left:
        raise click.exceptions.Exit(1)


def _list(listed: Iterable[Problem]) -> None:
    for problem in listed:
        say(f"{problem.place}: {problem.what}: {problem.reason}")


def _shown(problem: Problem) -> dict[str, str]:
    return {"place": problem.place, "what": problem.what, "reason": problem.reason}


def _count(problems: int) -> str:
    return count_text(problems, "problem")
