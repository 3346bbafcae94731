"""`halfmoon demo`: shows the play on the screen, then the closing table."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from halfmoon.cli.demo.ledgers import Counts
from halfmoon.cli.demo.pipeline import Pipeline, missing
from halfmoon.cli.demo.processes import Cast
from halfmoon.cli.demo.story import Ending, Play, Watch
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import Json
from halfmoon.cli.shared.output import console, show_json, show_table
from halfmoon.cli.spark.options import check_plot

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    orders: Annotated[int, typer.Option("--orders", min=10, max=100_000, help="Number of orders.")] = 2000,
    per_second: Annotated[int, typer.Option("--per-second", min=1, max=10_000, help="Orders per second.")] = 200,
    kills: Annotated[
        int, typer.Option("--kills", min=0, max=20, help="How often the broker is killed; 0 also leaves the order service alone.")
    ] = 1,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="End with Spark: exactly-once copy, table, audit.")] = True,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Where to draw Spark's audit; default: a new temporary file.")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", file_okay=False, help="Keep the store, databases, Spark's table and logs here."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the whole story with real processes, kill them with -9, and check that everything agrees.

    An order service decides orders in an SQLite database: those paid are published, those refused never are, and of some it tells
    the broker nothing. It is killed, and another of its group takes over and answers the broker's checks; the broker is killed and
    started again. One consumer group is given all orders, one what a filter chooses, one reminders at their time. Then Spark copies
    the events to another topic, exactly once, with its driver killed in the middle; makes a table of them; and audits the
    transactions. All are real processes. Without Java or halfmoon's extra lake Spark's part is left out. Exit code 1 when
    anything does not agree.

    Example: halfmoon demo --orders 5000 --kills 3
    """
    check_plot(plot)
    with _private():
        directory = keep if keep is not None else Path(tempfile.mkdtemp(prefix="halfmoon-demo-"))
        directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise typer.BadParameter(f"--keep {directory}: must be empty")
    no_spark = missing() if spark else "it was not asked for"
    picture = None if no_spark else plot or _picture(keep)
    try:
        with _private(), Cast(directory) as cast, _screen(orders, as_json=as_json) as watch:
            play = Play(cast, orders=orders, per_second=per_second, kills=kills, watch=watch, picture=picture, no_spark=no_spark)
            ending = play.run()
    finally:
        if picture is not None and picture.exists() and not picture.stat().st_size:
            picture.unlink()  # nothing was drawn
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    if as_json:
        show_json({**msgspec.to_builtins(ending), "agrees": ending.agrees})
    else:
        _show(ending)
    if not ending.agrees:
        raise typer.Exit(1)


@contextmanager
def _private() -> Iterator[None]:
    """Make files that only their owner may read, here and in processes that are started."""
    umask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(umask)


@contextmanager
def _screen(orders: int, *, as_json: bool) -> Iterator[Watch]:
    """Give something to tell of the play: bars on a terminal, one line an act elsewhere, nothing for programs."""
    if as_json:
        yield lambda what, now: None
    elif not sys.stdout.isatty():
        yield _Acts().tell
    else:
        bars = Progress(TextColumn("{task.description:<24}"), BarColumn(40), MofNCompleteColumn())
        lines = [bars.add_task(name, total=orders) for name in ("orders paid", "orders refused", "orders delivered")]
        act = Text()

        def tell(what: str, now: Counts) -> None:
            for line, count in zip(lines, now):
                bars.update(line, completed=count)
            colour = "red" if "killed" in what else "yellow" if "start" in what else "green"
            act.plain, act.style = what, f"bold {colour}"

        with Live(Group(bars, act), console=console(), refresh_per_second=20):
            yield tell


class _Acts:
    """Writes one line when a new act begins."""

    def __init__(self) -> None:
        self._last = ""

    def tell(self, what: str, now: Counts) -> None:
        if what != self._last:
            self._last = what
            say(f"{what}: {now.paid:,} paid, {now.refused:,} refused, {now.delivered:,} delivered")


def _picture(keep: Path | None) -> Path:
    """Return where the audit is drawn: beside what is kept, or into a new file that stays."""
    if keep is not None:
        return keep / "transactions.png"
    handle, name = tempfile.mkstemp(prefix="halfmoon-demo-", suffix=".png")
    os.close(handle)
    return Path(name)


def _show(ending: Ending) -> None:
    """Write the closing table, and below it what it does not say."""
    e = ending
    rows: list[tuple[str, str, object, object, object, object, bool]] = [
        ("paid", "paid", e.paid, f"{e.paid_committed:,} committed", e.paid_visible, e.paid_delivered, e.paid_agrees),
        ("refused", "refused", e.refused, f"{e.refused_rolled_back:,} rolled back", e.refused_visible, e.refused_delivered,
         e.refused_agrees),
        ("left_behind", "cut short", 0, f"{_of(e.left_behind_rolled_back, e.left_behind)} rolled back", e.left_behind_visible,
         e.left_behind_delivered, e.left_behind_agrees),
        ("in_doubt", "in doubt", e.in_doubt, f"{e.pending:,} pending", e.in_doubt_visible, e.in_doubt_delivered, e.in_doubt_agrees),
        ("large", "by a filter", e.large, "", e.large_visible, e.large_delivered, e.large_agrees),
        ("reminders", "reminders", e.reminders, "", e.reminders_visible, e.reminders_delivered, e.reminders_agree),
    ]  # fmt: skip
    spark = [{}, {}] if e.spark is None else [e.spark.table, e.spark.copies]
    shown = [(*row[1:6], *(there.get(row[0], "") for there in spark if e.spark), _word(row[6])) for row in rows]
    names = ("outcome", "database", "half messages", "log", "delivered", *(("in Spark", "copied") if e.spark else ()), "agrees")
    show_table("", names, shown)
    if e.spark is not None:
        _show_spark(e.spark)
    say(f"Checks decided {e.by_check:,}: their second phase was lost, or somebody was killed.")
    if e.again_visible or e.again_delivered:
        say(f"{e.again_visible:,} messages are visible twice, {e.again_delivered:,} came again and were recognised.")
    if e.reminders:
        say(f"No reminder came before its time; half of them at most {e.reminders_late_ms} ms after it.")
    again = ", ".join(f"{ms} ms" for ms in e.ready_ms[1:])
    say(f"The broker was ready in {e.ready_ms[0]} ms" + (f", and after kill -9 in {again}." if again else "."))
    if e.no_spark:
        say(f"Spark's part was left out: {e.no_spark}")
    say(f"{'Everything agrees' if e.agrees else 'IT DOES NOT AGREE'}, after {e.seconds} s.")


def _show_spark(spark: Pipeline) -> None:
    """Write the audit of the log beside the broker's own figures, and how the copying went."""
    audit = spark.audit
    took = {each.state: each for each in audit.decisions}
    rows = [
        (
            state.lower().replace("_", " "),
            audit.states.get(state, 0),
            spark.at_broker.get(state, 0),
            *(("", "", "") if (one := took.get(state)) is None else (round(one.p50), round(one.p95), round(one.max))),
            _word(audit.states.get(state, 0) == spark.at_broker.get(state, 0)),
        )
        for state in sorted({*audit.states, *spark.at_broker})
    ]
    show_table("", ("transactions", "in the log", "at the broker", "p50 ms", "p95 ms", "longest ms", "agrees"), rows)
    say(f"As a picture: {audit.picture}")
    say(f"{audit.duplicates:,} transactions are visible twice, {audit.orphans:,} records of the log belong to none.")
    differ = f"{spark.copies_differ:,} differ from the log" if spark.copies_differ else "none is missing, none is there twice"
    say(f"Spark's driver was killed when {spark.killed_at:,} of {spark.copied:,} copies were there; {differ}.")
    if spark.table_differs:
        say(f"{spark.table_differs:,} rows of Spark's table differ from the log.")


def _of(part: int, whole: int) -> str:
    return f"{part:,}" if part == whole else f"{part:,} of {whole:,}"


def _word(agrees: bool) -> str:
    return "yes" if agrees else "NO"
