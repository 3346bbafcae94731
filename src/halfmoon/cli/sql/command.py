"""`halfmoon sql`: a query over topics. Declares the command; DuckDB is loaded when it runs."""

from __future__ import annotations

from typing import Annotated

from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Json, NameServer, time_ms
from halfmoon.cli.shared.output import show_json
from halfmoon.cli.spark.options import Limit, Since, facts, show_rows
from halfmoon.errors import UsageError

app = App()


@app.command(finds=True)
def sql(
    query: Annotated[str, Argument(metavar="SQL", help='A query; topics are tables, with other names in quotes: "a-b".')],
    since: Since = None,
    decode: Annotated[
        str, Option("--decode", metavar="KIND", help="json or text: columns from bodies, in place of body; binary: body.")
    ] = "binary",
    into: Annotated[
        str, Option("--into", metavar="COLUMN", help="One column for all fields of a body; default: each field is a column.")
    ] = "",
    limit: Limit = 100,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> int:
    """Query topics with SQL, on DuckDB.

    Needs pip install duckdb 'halfmoon[arrow]', and neither Spark nor Java. Columns are those of halfmoon docs data. Only those that
    the query uses are read, and conditions on tags, queueId, queueOffset and storeTimestamp limit what is read.

    Example: halfmoon sql "select tags, count(*) from orders group by tags" --since 2h

    Example: halfmoon sql "select customer, sum(total) from orders group by 1" --decode json
    """
    since_ms = time_ms(since) if since else None
    try:
        from halfmoon.cli.sql.query import run
    except ModuleNotFoundError as exc:
        name = (exc.name or "").partition(".")[0]
        wanted = "duckdb" if name == "duckdb" else "'halfmoon[arrow]'"
        raise UsageError(f"{name} is not installed: pip install {wanted}") from None
    columns, rows, more = run(query, nameserver=nameserver, since=since_ms, decode=decode, into=into, limit=limit)
    if as_json:
        show_json({"columns": columns, "rows": facts(rows), "more": more}, rows="rows")
        return len(rows)
    show_rows("", columns, rows)
    if more:
        say(f"there are more than these {limit:,}: give --limit")
    return len(rows)
