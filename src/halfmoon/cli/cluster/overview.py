"""`halfmoon cluster`: clusters that the name servers know, with the state of their brokers."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Annotated

import click

import halfmoon
from halfmoon.cli.shared.app import App, Argument, Option, given_on_the_command_line
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Json, NameServer, duration_ms
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.errors import BrokerError, NetworkError, UsageError, text_of
from halfmoon.results import BrokerStatus
from halfmoon.shown.texts import absent_text, rate_text, share_text, size_text, span_text

app = App(invoke_without_command=True)

COMPLETE = re.compile(r"master of epoch \d+, complete\b")
"""Beginning of the state of a pair whose follower has everything."""
LOOK_S = 0.5
"""Pause between two looks at a pair."""


@app.before
def cluster(nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Show clusters and their brokers; change the master of a pair.

    Columns: the id (0: a master), the address, the version, messages in and out per second, the share of the disk in use, and of
    slaves how far they are behind. Below them stand the masters of pairs with who follows, and brokers that do not answer, refuse
    to, report a fault, or have no master. Exit code 1 if there is one, or no broker at all.

    Example: halfmoon cluster
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        if any(given_on_the_command_line(context, name) for name in context.params):
            raise UsageError("options of these commands stand behind them: halfmoon cluster switch NAME --json")
        return
    with halfmoon.Admin(nameserver=nameserver) as admin:
        brokers = sorted(admin.brokers(), key=lambda each: (each.cluster, each.name, each.id))
    if as_json:
        show_json(brokers)
    else:
        columns = ("cluster", "broker", "id", "address", "version", "in/s", "out/s", "disk", "up", "behind")
        show_table("", columns, [(each.cluster, each.name, each.id, each.address, *_cells(each)) for each in brokers])
        for broker in brokers:
            if broker.pair:
                say(f"{broker.name}/{broker.id}: {broker.pair}")
            if broker.fault:
                say(f"{broker.name}/{broker.id}: {broker.fault}")
    if not as_json and (absent := _absent(brokers)):
        say(absent)
    if _absent(brokers) or any(broker.fault for broker in brokers):
        raise click.exceptions.Exit(1)


@app.command()
def switch(
    broker: Annotated[str, Argument(metavar="BROKER", help="Name of the broker.")],
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Have the follower of a pair take over from the master, and wait until it has.

    Nothing is lost, and clients go on by themselves. Use it before maintenance of the master's machine. Exit code 1: the master
    refuses, because nobody else has everything, or no other master was registered within 30 s.

    Example: halfmoon cluster switch broker-a
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        switched = admin.switch_master(broker)
    if as_json:
        show_json(switched)
    else:
        took = f"{switched.took_ms / 1000:.1f} s"
        say(f"{switched.master} is the master of {switched.broker} now, in epoch {switched.epoch}; it was {switched.was} ({took})")


@app.command()
def wait(
    broker: Annotated[str, Argument(metavar="BROKER", help="Name of the broker.")],
    span: Annotated[str, Option("--for", metavar="DURATION", help="Longest wait: 1s to 1d.")] = "1h",
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Wait until a pair is complete: it has a master, and the follower has everything.

    Use it between the steps of an upgrade. Members and name servers may be away meanwhile. Exit code 1: the pair is not
    complete at the end of the wait; the reason is named.

    Example: halfmoon cluster wait broker-a --for 10m
    """
    ends = time.monotonic() + duration_ms(span, "--for", at_least="1s", at_most="1d") / 1000
    with halfmoon.Admin(nameserver=nameserver) as admin:
        while True:
            master, reason = _complete(admin, broker)
            if master is not None or time.monotonic() + LOOK_S > ends:
                break
            time.sleep(LOOK_S)
    if master is None:
        raise NetworkError(f"the pair {broker} is not complete after {span}: {reason}")
    if as_json:
        show_json(master)
    else:
        say(f"{master.name}/{master.id}: {master.pair}")


def _complete(admin: halfmoon.Admin, name: str) -> tuple[BrokerStatus | None, str]:
    """Return the master of a complete pair, or why it is not complete. Raises UsageError: its master is in no pair."""
    try:
        members = [each for each in admin.brokers() if each.name == name]
    except (NetworkError, BrokerError) as exc:
        return None, text_of(exc)
    master = next((each for each in members if each.id == 0), None)
    if master is None:
        return None, _absent(members) if members else f"no broker {name!r:.100} is registered"
    if master.state == "reports" and not master.pair:
        raise UsageError(f"broker {name} at {master.address} is not in a pair: start it with --lease, and another of the same name")
    if master.pair and COMPLETE.match(master.pair):
        return master, ""
    return None, master.pair or master.fault or f"{master.address} does not say who follows"


@app.command()
def takeover(
    broker: Annotated[str, Argument(metavar="BROKER", help="Name of the broker.")],
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Have a Halfmoon slave take the place of its Apache master, and wait until it has.

    The master takes no more writes, the slave copies the rest, compares both logs and becomes the master. Nothing is lost, and
    clients find it with their next look at the routes. Exit code 1: the slave refuses, or could not; then the old master is the
    master again.

    Example: halfmoon cluster takeover broker-a
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        taken = admin.take_over(broker)
    if as_json:
        show_json(taken)
    else:
        say(f"{taken.master} is the master of {taken.broker} now; it was {taken.was or 'unknown'} ({taken.took_ms / 1000:.1f} s)")


def _absent(brokers: Sequence[BrokerStatus]) -> str:
    """Return which brokers have no master, or that there is no broker; empty: each has one."""
    members: dict[str, dict[int, str]] = {}
    for broker in brokers:
        members.setdefault(broker.name, {})[broker.id] = broker.address
    masterless = {name: addresses for name, addresses in members.items() if 0 not in addresses}
    return absent_text(masterless) if masterless or not brokers else ""


def _cells(broker: BrokerStatus) -> tuple[str, ...]:
    if broker.version is None:
        return ("-",) * 6
    rates = rate_text(broker.in_per_second), rate_text(broker.out_per_second)
    up = "-" if broker.uptime_ms is None else span_text(broker.uptime_ms)
    version = broker.version + (f" native {broker.native}" if broker.native else "")
    return version, *rates, share_text(broker.disk_used), up, _behind(broker)


def _behind(broker: BrokerStatus) -> str:
    """Return how far a slave is behind: bytes, and for how long if there are some."""
    if broker.behind_bytes is None:
        return "-"
    since = f" for {span_text(broker.behind_ms)}" if broker.behind_bytes and broker.behind_ms is not None else ""
    return size_text(broker.behind_bytes) + since
