"""`halfmoon cluster`: clusters that the name servers know, with the state of their brokers."""

from __future__ import annotations

import click

import halfmoon
from halfmoon.cli.shared.app import App
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Json, NameServer
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.results import BrokerStatus
from halfmoon.shown.texts import rate_text, share_text, span_text

app = App()


@app.command()
def cluster(nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Show clusters and their brokers.

    Columns: the id (0: a master), the address, the version, messages in and out per second, and the share of the disk in use. Below
    them stand brokers that do not answer, refuse to, or report a fault; exit code 1 if there is one.

    Example: halfmoon cluster
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        brokers = sorted(admin.brokers(), key=lambda each: (each.cluster, each.name, each.id))
    if as_json:
        show_json(brokers)
    else:
        columns = ("cluster", "broker", "id", "address", "version", "in/s", "out/s", "disk", "up")
        show_table("", columns, [(each.cluster, each.name, each.id, each.address, *_cells(each)) for each in brokers])
        for broker in brokers:
            if broker.fault:
                say(f"{broker.name}/{broker.id}: {broker.fault}")
    if any(broker.fault for broker in brokers):
        raise click.exceptions.Exit(1)


def _cells(broker: BrokerStatus) -> tuple[str, ...]:
    if broker.version is None:
        return "-", "-", "-", "-", "-"
    rates = rate_text(broker.in_per_second), rate_text(broker.out_per_second)
    up = "-" if broker.uptime_ms is None else span_text(broker.uptime_ms)
    version = broker.version + (f" native {broker.native}" if broker.native else "")
    return version, *rates, share_text(broker.disk_used), up
