"""`halfmoon demo`: runs the example of that name, which is part of the wheel."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import halfmoon
from halfmoon.cli.shared.app import App, Option
from halfmoon.cli.shared.options import Json
from halfmoon.cli.spark.options import check_plot
from halfmoon.errors import UsageError

app = App()


@app.command()
def demo(
    orders: Annotated[int, Option("--orders", min=10, max=100_000, help="Number of orders.")] = 2000,
    per_second: Annotated[int, Option("--per-second", min=1, max=10_000, help="Orders per second.")] = 200,
    kills: Annotated[
        int, Option("--kills", min=0, max=20, help="How often the broker is killed; 0 also leaves the order service alone.")
    ] = 1,
    spark: Annotated[bool, Option("--spark/--no-spark", help="End with Spark: exactly-once copy, table, audit.")] = True,
    plot: Annotated[
        Path | None, Option("--plot", metavar="FILE.png", help="Where to draw Spark's audit; default: a new temporary file.")
    ] = None,
    keep: Annotated[
        Path | None,
        Option("--keep", metavar="DIR", file_okay=False, help="Keep the store, databases, Spark's table and logs here."),
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
    options = {"--orders": orders, "--per-second": per_second, "--kills": kills, "--plot": plot, "--keep": keep}
    words = [str(word) for name, value in options.items() if value is not None for word in (name, value)]
    switches = ["--spark" if spark else "--no-spark", *(["--json"] if as_json else [])]
    os.execv(sys.executable, [sys.executable, str(_example()), *words, *switches])


def _example() -> Path:
    """Return the directory of the example: in the package as the wheel has it, or in the clone that it is installed from."""
    package = Path(halfmoon.__file__).parent
    for place in (package / "examples" / "demo", package.parents[1] / "examples" / "demo"):
        if (place / "__main__.py").is_file():
            return place
    raise UsageError("the example is missing: install halfmoon from a wheel, or run it in a clone")
