"""`halfmoon spark compact | dedup | verify | replay`: tables kept in order, and replays. Loads PySpark only when one runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from halfmoon.cli.options import LOCAL, Json, NameServer, age_ms, pairs, time_ms
from halfmoon.cli.spark_options import Limit, Master, Options, Since, asked, missing
from halfmoon.errors import UsageError

Table = Annotated[Path, typer.Argument(metavar="DIR", help="The table's directory.")]
Name = Annotated[str, typer.Option("--name", metavar="NAME", help="Of an Iceberg table, such as lake.orders.")]
Catalog = Annotated[
    list[str] | None, typer.Option("--catalog", metavar="NAME=VALUE", help="A property of its catalog for pyiceberg; repeatable.")
]


def compact(
    table: Table,
    file_size: Annotated[str, typer.Option("--file-size", metavar="SIZE", help="Files become about so large.")] = "128m",
    vacuum: Annotated[
        str | None,
        typer.Option("--vacuum", metavar="AGE", help="Also remove files that no table knows and that are older: 1d; 1h at least."),
    ] = None,
    name: Name = "",
    catalog: Catalog = None,
    master: Master = None,
    as_json: Json = False,
) -> None:
    """Join small files of a table to larger ones, within their partition; rows and offsets stay as they are.

    Example: halfmoon spark compact lake/orders --vacuum 1d
    """
    found = asked("", master, None, as_json=as_json)
    keep_ms, work = None if vacuum is None else age_ms(vacuum), _work()
    if keep_ms is not None:
        work.upkeep.check_keep(keep_ms)  # before anything is joined
    work.compact(found, _place(table, name, catalog), file_size, keep_ms)


def dedup(
    table: Table,
    by: Annotated[str, typer.Option("--by", metavar="COLUMN", help="What copies share: msgId or keys.")] = "msgId",
    name: Name = "",
    catalog: Catalog = None,
    master: Master = None,
    as_json: Json = False,
) -> None:
    """Take copies of messages out of a table for good; of each message the first offset stays.

    Example: halfmoon spark dedup lake/orders --by keys
    """
    _work().dedup(asked("", master, None, as_json=as_json), _place(table, name, catalog), by)


def verify(
    table: Table,
    live: Annotated[bool, typer.Option("--live", help="Also compare with the messages that the brokers hold.")] = False,
    name: Name = "",
    catalog: Catalog = None,
    limit: Limit = 1000,
    master: Master = None,
    option: Options = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Look whether a table has every offset of its batches once. Exit code 1 when offsets are missing, double or different.

    Example: halfmoon spark verify lake/orders --live
    """
    found = asked(nameserver, master, option, as_json=as_json)
    _work().verify(found, _place(table, name, catalog), live=live, limit=limit)


def replay(
    to: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to send to; it must be there.")],
    topic: Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic to replay.")] = None,
    table: Annotated[Path | None, typer.Option("--table", metavar="DIR", help="Or the table to replay.")] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Only messages for which it is true: tags = 'paid'.")
    ] = None,
    since: Since = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, metavar="N", help="At most so many a second; else all at once.")
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The replay's transactional id; one that was cut off goes on with it.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be sent.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed without a terminal.")] = False,
    name: Name = "",
    catalog: Catalog = None,
    master: Master = None,
    option: Options = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Send the messages of a topic or a table to another topic, each once however often it is begun. Needs Halfmoon's brokers.

    A replay that is complete is not repeated under its id. Exit code 1 when there is nothing to send.

    Example: halfmoon spark replay orders_again --topic orders --where "tags = 'paid'" --rate 100 --id may-31
    """
    if (topic is None) == (table is None):
        raise UsageError("exactly one of --topic and --table says what is replayed")
    if not (yes or dry_run):
        if not sys.stdin.isatty():
            raise UsageError("a replay is confirmed: without a terminal give --yes or --dry-run")
        typer.confirm(f"send these messages to {to}?", abort=True, err=True)
    found, work = asked(nameserver, master, option, as_json=as_json), _work()
    source = topic if table is None else _place(table, name, catalog)
    wanted = work.Wanted(to, id, where, None if since is None else time_ms(since), rate, dry_run)
    work.replay(found, source, wanted)


def _place(table: Path, name: str, catalog: list[str] | None) -> tuple[Path, str, dict[str, str]]:
    return table, name, pairs(catalog or [], "--catalog")


def _work() -> Any:
    try:
        from halfmoon.cli import spark_tables
    except ModuleNotFoundError as exc:
        raise missing(exc, "spark") from None
    return spark_tables
