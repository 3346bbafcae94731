"""`halfmoon spark compact`, `dedup`, `verify` and `replay`: maintenance and replays of tables. Loads PySpark when one runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from halfmoon.cli.shared.app import Argument, Option
from halfmoon.cli.shared.options import Json, OneTopic, Yes, confirm, duration_ms, pairs, time_ms
from halfmoon.cli.spark.options import Limit, Master, SharedOptions, Since, loaded
from halfmoon.errors import UsageError

Table = Annotated[Path, Argument(metavar="DIR", help="The table's directory.")]
Name = Annotated[str, Option("--name", metavar="NAME", help="The name of an Iceberg table, such as lake.orders.")]
Catalog = Annotated[
    list[str] | None, Option("--catalog", metavar="NAME=VALUE", help="A pyiceberg catalog property; may be repeated.")
]


def compact(
    table: Table,
    file_size: Annotated[str, Option("--file-size", metavar="SIZE", help="Target file size.")] = "128m",
    vacuum: Annotated[
        str | None,
        Option("--vacuum", metavar="DURATION", help="Also remove unreferenced files older than this (at least 1h): 1d."),
    ] = None,
    name: Name = "",
    catalog: Catalog = None,
    master: Master = None,
    as_json: Json = False,
) -> None:
    """Merge small files of a table into larger ones within each partition; rows and offsets stay the same.

    Example: halfmoon spark compact lake/orders --vacuum 1d
    """
    shared = SharedOptions(nameserver="", master=master, as_json=as_json)
    keep_ms = None if vacuum is None else duration_ms(vacuum, "--vacuum")
    jobs = loaded("cli.spark.tables", "spark")
    if keep_ms is not None:
        jobs.maintenance.check_keep(keep_ms)  # before anything is joined
    jobs.compact(shared, _place(table, name, catalog), file_size, keep_ms)


def dedup(
    table: Table,
    by: Annotated[str, Option("--by", metavar="COLUMN", help="Column that duplicates have in common: msgId or keys.")] = "msgId",
    name: Name = "",
    catalog: Catalog = None,
    master: Master = None,
    as_json: Json = False,
) -> None:
    """Delete duplicate messages from a table; the lowest offset of each message stays.

    Example: halfmoon spark dedup lake/orders --by keys
    """
    loaded("cli.spark.tables", "spark").dedup(
        SharedOptions(nameserver="", master=master, as_json=as_json), _place(table, name, catalog), by
    )


def verify(
    table: Table,
    live: Annotated[bool, Option("--live", help="Also compare with the messages in the brokers.")] = False,
    name: Name = "",
    catalog: Catalog = None,
    limit: Limit = 1000,
    *,
    shared: SharedOptions,
) -> None:
    """Check that a table has every offset of its batches exactly once. Exit code 1 if offsets are missing, duplicated or different.

    Example: halfmoon spark verify lake/orders --live
    """
    loaded("cli.spark.tables", "spark").verify(shared, _place(table, name, catalog), live=live, limit=limit)


Where = Annotated[str | None, Option("--where", metavar="SQL", help="Only messages that satisfy this condition: tags = 'paid'.")]
Rate = Annotated[
    float | None, Option("--rate", min=0.001, metavar="N", help="Send at most N messages a second; default: no limit.")
]
Id = Annotated[
    str | None,
    Option("--id", metavar="ID", help="The replay's transactional id; pass it again to continue one that was interrupted."),
]


def replay(
    topic: OneTopic = None,
    *,
    to: Annotated[str, Option("--to", metavar="TOPIC", help="The topic to send to; it must exist.")],
    table: Annotated[Path | None, Option("--table", metavar="DIR", help="The table to replay.")] = None,
    where: Where = None,
    since: Since = None,
    rate: Rate = None,
    id: Id = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Count what would be sent, and send nothing.")] = False,
    yes: Yes = False,
    name: Name = "",
    catalog: Catalog = None,
    shared: SharedOptions,
) -> int:
    """Send the messages of a topic or a table to another topic exactly once, even if it is restarted. Requires Halfmoon brokers.

    A completed replay is not repeated under its id.

    Example: halfmoon spark replay orders --to orders_again --where "tags = 'paid'" --rate 100 --id may-31
    """
    if (topic is None) == (table is None):
        raise UsageError("give exactly one of TOPIC and --table")
    what = f"topic {topic}" if topic else f"table {table}"
    confirm(f"send messages of {what} to topic {to} and all its groups", yes=yes or dry_run)
    jobs = loaded("cli.spark.tables", "spark")
    source = topic if table is None else _place(table, name, catalog)
    request = jobs.ReplayRequest(to, id, where, None if since is None else time_ms(since), rate, dry_run)
    sent: int = jobs.replay(shared, source, request)
    return sent


def _place(table: Path, name: str, catalog: list[str] | None) -> tuple[Path, str, dict[str, str]]:
    return table, name, pairs(catalog or [], "--catalog")
