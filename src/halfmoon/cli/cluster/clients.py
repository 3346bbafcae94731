"""`halfmoon client`: producers and consumers that are connected to the brokers."""

from __future__ import annotations

from typing import Annotated

import halfmoon
from halfmoon.cli.shared.app import App, Option
from halfmoon.cli.shared.lines import say, say_failing
from halfmoon.cli.shared.options import LOCAL, Cluster, Json, NameServer
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.shown.texts import facts_of

app = App(
    help="List the producers and consumers that are connected.\n\nExample: halfmoon client list --group C_shop",
)


@app.command("list", finds=True)
def list_clients(
    group: Annotated[
        str | None, Option("--group", "-g", metavar="GROUP", help="Only this group, of producers or of consumers.")
    ] = None,
    cluster: Cluster = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> int:
    """List connected clients, a line for each group that one is in: its address, language and version.

    Brokers before RocketMQ 4.9 list the producers of a group only: they are asked with --group.

    Example: halfmoon client list --group C_shop
    """
    failing: list[str] = []
    with halfmoon.Admin(nameserver=nameserver) as admin:
        found = admin.clients(group, cluster=cluster, failing=failing)
    say_failing(failing)
    if as_json:
        show_json(facts_of(found), rows="clients")
        return len(found.clients)
    rows = [
        (each.kind, each.group, each.client_id, each.address, each.language, each.version, ", ".join(each.brokers))
        for each in found.clients
    ]
    show_table("", ("kind", "group", "client id", "address", "language", "version", "brokers"), rows)
    for broker in found.without_producers:
        say(f"{broker} is older than RocketMQ 4.9 and lists the producers of a group only: give --group", error=True)
    return len(found.clients)
