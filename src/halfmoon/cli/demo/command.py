"""`halfmoon demo`: shows what happens, then the closing table."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from halfmoon.cli.demo.ledgers import Counts
from halfmoon.cli.demo.outcome import Outcome
from halfmoon.cli.demo.pipeline import Decision, SparkOutcome, missing
from halfmoon.cli.demo.processes import Processes
from halfmoon.cli.demo.run import Demo, Watch
from halfmoon.cli.shared.app import App, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import Json
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.cli.spark.options import check_plot

app = App()


Orders = Annotated[int, Option("--orders", min=10, max=100_000, help="Number of orders.")]
PerSecond = Annotated[int, Option("--per-second", min=1, max=10_000, help="Orders per second.")]
Kills = Annotated[
    int, Option("--kills", min=0, max=20, help="How often the broker is killed; 0 also leaves the order service alone.")
]
WithSpark = Annotated[bool, Option("--spark/--no-spark", help="End with Spark: exactly-once copy, table, audit.")]
Plot = Annotated[
    Path | None, Option("--plot", metavar="FILE.png", help="Where to draw Spark's audit; default: a new temporary file.")
]
Keep = Annotated[
    Path | None,
    Option("--keep", metavar="DIR", file_okay=False, help="Keep the store, databases, Spark's table and logs here."),
]


@app.command()
def demo(
    orders: Orders = 2000,
    per_second: PerSecond = 200,
    kills: Kills = 1,
    spark: WithSpark = True,
    plot: Plot = None,
    keep: Keep = None,
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
    directory = _directory(keep)
    no_spark = missing() if spark else "it was not asked for"
    picture = None if no_spark else plot or _picture(keep)
    try:
        with _private(), Processes(directory) as processes, _screen(orders, as_json=as_json) as watch:
            running = Demo(
                processes, orders=orders, per_second=per_second, kills=kills, watch=watch, picture=picture, no_spark=no_spark
            )
            outcome = running.run()
    finally:
        if picture is not None and picture.exists() and not picture.stat().st_size:
            picture.unlink()  # nothing was drawn
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    if as_json:
        show_json({**msgspec.to_builtins(outcome), "agrees": outcome.agrees})
    else:
        _show(outcome)
    if not outcome.agrees:
        raise click.exceptions.Exit(1)


def _directory(keep: Path | None) -> Path:
    """Return an empty directory that only its owner may read: the one to keep, or a new one."""
    with _private():
        directory = keep if keep is not None else Path(tempfile.mkdtemp(prefix="halfmoon-demo-"))
        directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise click.BadParameter(f"--keep {directory}: must be empty")
    return directory


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
    """Show the course of the demo: bars on a terminal, one line a step elsewhere, nothing for programs."""
    if as_json:
        yield lambda what, now: None
    elif not sys.stdout.isatty():
        yield _Steps().show
    else:
        bars = Progress(TextColumn("{task.description:<24}"), BarColumn(40), MofNCompleteColumn())
        lines = [bars.add_task(name, total=orders) for name in ("orders paid", "orders refused", "orders delivered")]
        step = Text()

        def show(what: str, now: Counts) -> None:
            for line, count in zip(lines, now):
                bars.update(line, completed=count)
            colour = "red" if "killed" in what else "yellow" if "start" in what else "green"
            step.plain, step.style = what, f"bold {colour}"

        with Live(Group(bars, step), console=Console(), refresh_per_second=20):
            yield show


class _Steps:
    """Writes one line when a new step begins."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, what: str, now: Counts) -> None:
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


def _show(outcome: Outcome) -> None:
    """Write the closing table, and below it what the table does not show."""
    _show_outcomes(outcome)
    if outcome.spark is not None:
        _show_spark(outcome.spark)
    say(f"Checks decided {outcome.by_check:,}: their second phase was lost, or a process was killed.")
    if outcome.again_visible or outcome.again_delivered:
        say(f"{outcome.again_visible:,} messages are visible twice, {outcome.again_delivered:,} came again and were recognised.")
    if outcome.reminders:
        say(f"No reminder came before its time; half of them at most {outcome.reminders_late_ms} ms after it.")
    again = ", ".join(f"{ms} ms" for ms in outcome.ready_ms[1:])
    say(f"The broker was ready in {outcome.ready_ms[0]} ms" + (f", and after kill -9 in {again}." if again else "."))
    if outcome.no_spark:
        say(f"Spark's part was left out: {outcome.no_spark}")
    say(f"{'Everything agrees' if outcome.agrees else 'IT DOES NOT AGREE'}, after {outcome.seconds} s.")


def _show_outcomes(o: Outcome) -> None:
    rows: list[tuple[str, str, object, object, object, object, bool]] = [
        ("paid", "paid", o.paid, f"{o.paid_committed:,} committed", o.paid_visible, o.paid_delivered, o.paid_agrees),
        ("refused", "refused", o.refused, f"{o.refused_rolled_back:,} rolled back", o.refused_visible, o.refused_delivered,
         o.refused_agrees),
        ("left_behind", "cut short", 0, f"{_of(o.left_behind_rolled_back, o.left_behind)} rolled back", o.left_behind_visible,
         o.left_behind_delivered, o.left_behind_agrees),
        ("in_doubt", "in doubt", o.in_doubt, f"{o.pending:,} pending", o.in_doubt_visible, o.in_doubt_delivered, o.in_doubt_agrees),
        ("large", "by a filter", o.large, "", o.large_visible, o.large_delivered, o.large_agrees),
        ("reminders", "reminders", o.reminders, "", o.reminders_visible, o.reminders_delivered, o.reminders_agree),
    ]  # fmt: skip
    in_spark = [] if o.spark is None else [o.spark.table, o.spark.copies]
    shown = [(*row[1:6], *(counts.get(row[0], "") for counts in in_spark), _word(row[6])) for row in rows]
    names = ("outcome", "database", "half messages", "log", "delivered", *(("in Spark", "copied") if in_spark else ()), "agrees")
    show_table("", names, shown)


def _show_spark(spark: SparkOutcome) -> None:
    """Write the audit of the log beside the broker's own figures, and how the copying went."""
    audit = spark.audit
    decisions = {decision.state: decision for decision in audit.decisions}
    rows = [
        (
            state.lower().replace("_", " "),
            audit.states.get(state, 0),
            spark.at_broker.get(state, 0),
            *_latencies(decisions.get(state)),
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


def _latencies(decision: Decision | None) -> tuple[object, object, object]:
    return ("", "", "") if decision is None else (round(decision.p50), round(decision.p95), round(decision.max))


def _of(count: int, total: int) -> str:
    return f"{count:,}" if count == total else f"{count:,} of {total:,}"


def _word(agrees: bool) -> str:
    return "yes" if agrees else "NO"
