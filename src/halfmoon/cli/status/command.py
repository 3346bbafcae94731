"""`halfmoon status`: one word of health, rates and backlog, for people and for monitoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import click

import halfmoon
from halfmoon.cli.shared.app import App, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Json, NameServer, duration_ms
from halfmoon.cli.shared.output import NO_NAME_SERVER, show_json, show_table
from halfmoon.cli.status.watch import watch
from halfmoon.results import DISK_WARNING, BrokerStatus, ClusterStatus, StatusLimits
from halfmoon.shown.texts import rate_text, share_text, span_text

app = App()


def _duration(flag: str, help: str) -> Option:
    return Option(flag, metavar="DURATION", help=help)


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Thresholds from which on a cluster counts as degraded. Those that are texts are durations."""

    max_lag: Annotated[int | None, Option("--max-lag", min=0, help="Degraded if a group's lag is higher.")] = None
    max_pending_age: Annotated[
        str | None, _duration("--max-pending-age", "Degraded if a transaction is pending for longer: 30s, 5m.")
    ] = None
    max_disk: Annotated[
        int, Option("--max-disk", min=1, max=100, metavar="PERCENT", help="Degraded if a disk is at least this full.")
    ] = round(DISK_WARNING * 100)
    max_stuck: Annotated[str, _duration("--max-stuck", "Degraded if a group with members is stuck for longer.")] = "60s"
    max_memberless: Annotated[
        str, _duration("--max-memberless", "Degraded if messages wait longer for a group without members.")
    ] = "5m"
    max_undecidable: Annotated[str, _duration("--max-undecidable", "Degraded if a transaction without a producer is older.")] = "5m"
    min_certificate: Annotated[str, _duration("--min-certificate", "Degraded if a broker's certificate expires sooner.")] = "14d"

    def limits(self) -> StatusLimits:
        """Return the thresholds as numbers: ``max_stuck`` as ``stuck_ms``. Raises click.BadParameter."""
        durations = {
            f"{name.partition('_')[2]}_ms": duration_ms(text, f"--{name.replace('_', '-')}")
            for name, text in vars(self).items()
            if isinstance(text, str)
        }
        return StatusLimits(lag=self.max_lag, disk=self.max_disk / 100, **durations)


@app.command()
def status(
    thresholds: Thresholds,
    live: Annotated[bool, Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[str, Option("--interval", metavar="DURATION", help="With --watch: time between two refreshes.")] = "2s",
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Show whether the cluster is healthy, degraded or down.

    Exit code 0 when healthy, else 1. Degraded: a broker does not answer or cannot write, its disk is nearly full, a group is stuck
    or has no member while messages wait, a transaction has no producer that could decide it, or a threshold is passed. No access:
    brokers answer, and require an account or refuse the one that is given. A group is *behind for* the age of the message that it
    consumed last where more have come since.

    Example: halfmoon status --max-lag 10000 --max-pending-age 5m --max-disk 80

    Example: halfmoon status --watch
    """
    limits = thresholds.limits()
    with halfmoon.Admin(nameserver=nameserver) as admin:
        if live:
            pause_ms = duration_ms(interval, "--interval", at_least="500ms", at_most="1h")
            watch(lambda: admin.status(limits), pause_ms, as_json=as_json)
            return
        found = admin.status(limits)
    if as_json:
        show_json(found)
    else:
        _show(found)
    if found.health != "healthy":
        raise click.exceptions.Exit(1)


def _show(status: ClusterStatus) -> None:
    say(status.health)
    for fault in status.faults:
        say(f"  {fault}")
    for note in (finding for finding in status.findings if finding.severity == "note"):
        say(f"  note: {note.group}: {note.what}" if note.group else f"  note: {note.what}")
    if status.health == "down" and not status.findings:
        say(f"  {NO_NAME_SERVER}")
    if status.brokers:
        _show_brokers(status.brokers)
    if status.backlog:
        rows = [
            (
                group,
                behind.messages,
                "" if behind.behind_ms is None else span_text(behind.behind_ms),
                "-" if behind.redelivery is None else behind.redelivery,
                "-" if behind.members is None else behind.members,
            )
            for group, behind in status.backlog.items()
        ]
        show_table("backlog", ("group", "messages behind", "behind for", "redelivery", "members"), rows)


def _show_brokers(brokers: Sequence[BrokerStatus]) -> None:
    show_table("brokers", BROKER_COLUMNS, map(_row, brokers))
    for broker in brokers:
        if broker.pair:
            say(f"pair {broker.name}/{broker.id}: {broker.pair}")
    if slow := [broker.name for broker in brokers if broker.native == ""]:
        say(f"without halfmoon-native, so with less throughput: {', '.join(dict.fromkeys(slow))}")


BROKER_COLUMNS = (
    "broker", "in/s", "out/s", "pending", "disk", "refused", "up for", "address", "version", "in today", "out today",
)  # fmt: skip
"""Columns, the most important first: a narrow terminal leaves out the last ones."""


def _row(broker: BrokerStatus) -> tuple[object, ...]:
    count, age = broker.transactions_pending, broker.oldest_pending_ms
    return (
        f"{broker.name}/{broker.id}",
        rate_text(broker.in_per_second),
        rate_text(broker.out_per_second),
        "-" if count is None else f"{count:,}" + ("" if age is None else f" for {span_text(age)}"),
        share_text(broker.disk_used),
        "-" if broker.requests_refused is None else f"{broker.requests_refused:,}",
        "-" if broker.uptime_ms is None else span_text(broker.uptime_ms),
        broker.address,
        (broker.version or "-") + (f" native {broker.native}" if broker.native else ""),
        broker.in_today,
        broker.out_today,
    )
