"""Options of the commands of `halfmoon spark`, and tables of rows. Loads no PySpark; asks no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from halfmoon.cli.shared.app import Option
from halfmoon.cli.shared.options import LOCAL, Json, NameServer, pairs
from halfmoon.cli.shared.output import body_text, show_table
from halfmoon.errors import UsageError
from halfmoon.shown.texts import TIME_FORMS

Master = Annotated[
    str | None,
    Option(
        "--master", metavar="URL", envvar="SPARK_MASTER", help="Spark master: local[4], spark://…, yarn; default: this machine."
    ),
]
Options = Annotated[
    list[str] | None,
    Option("--option", "-o", metavar="NAME=VALUE", help="An option of the source, such as fetchBytes=8MiB; may be repeated."),
]
Plot = Annotated[Path | None, Option("--plot", metavar="FILE.png", help="Also draw a chart (requires the extra lake).")]
Since = Annotated[str | None, Option("--since", metavar="TIME", help=f"Only messages stored since: {TIME_FORMS}.")]
Limit = Annotated[int, Option("--limit", min=1, max=100_000, help="Show at most N rows.")]

BODY_WIDTH = 60


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Options of all jobs: master, options of the source, name servers, and JSON.

    Raises click.BadParameter.
    """

    master: Master = None
    option: Options = None
    nameserver: NameServer = LOCAL
    as_json: Json = False

    def __post_init__(self) -> None:
        _ = self.options  # malformed pairs are refused now, before a job begins

    @property
    def options(self) -> dict[str, str]:
        """The options of the source, by name."""
        return pairs(self.option or [], "--option")


def loaded(module: str, extra: str) -> Any:
    """Import a module of Halfmoon when a command needs it. Raises UsageError where the packages of its extra are not installed."""
    try:
        return import_module(f"halfmoon.{module}")
    except ModuleNotFoundError as exc:
        name = (exc.name or "").partition(".")[0]
        if name == "halfmoon":
            raise
        raise UsageError(f"{name} is not installed: pip install 'halfmoon[{extra}]'") from None


def check_plot(path: Path | None) -> None:
    """Refuse a plot that cannot be written, before the job runs. Raises UsageError."""
    if path is None:
        return
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot {path}: must end in .png")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no directory {path.absolute().parent}")


def facts(value: Any) -> Any:
    """Return a value of a row for JSON: times as ISO 8601 in UTC, bytes as text, or as hex where they are not UTF-8."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(name): facts(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [facts(member) for member in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def show_rows(title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as a table, each value on one line."""
    show_table(title, columns, [[_cell(row.get(name)) for name in columns] for row in rows])


def _cell(value: Any) -> object:
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray):
        return body_text(bytes(value), BODY_WIDTH)
    if isinstance(value, float):
        return round(value, 3)
    shown = facts(value)
    return shown if isinstance(shown, int | str) else ", ".join(map(str, shown)) if isinstance(shown, list) else str(shown)
