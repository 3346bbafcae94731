"""`halfmoon config`: the settings of running brokers and name servers, Apache's too."""

from __future__ import annotations

from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import click

import halfmoon
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Cluster, Json, NameServer, pairs
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.errors import BrokerError, HalfmoonError, NetworkError, UsageError
from halfmoon.model import split_addresses
from halfmoon.programs.described import known_settings, setting_rows, without_effect
from halfmoon.shown.texts import absent_text

app = App(
    help="Show and change the settings of running brokers and name servers.\n\nExample: halfmoon config get transactionTimeOut",
)

Kind = StrEnum("Kind", ["BROKER", "NAMESERVER"])
Of = Annotated[Kind, Option("--of", help="Kind of servers: brokers or name servers.")]
OfBroker = Annotated[str | None, Option("--broker", metavar="BROKER", help="Only this broker: its name, or host:port.")]
COLUMNS = ("setting", "value", "default", "set", "reason")


class AskedServer(NamedTuple):
    """Server that a command asks. A name server's name is its address."""

    name: str
    address: str


@app.command()
def get(
    keys: Annotated[
        list[str] | None, Argument(metavar="[SETTING]...", help="Names of settings, RocketMQ's keys or ours; none: all.")
    ] = None,
    of: Of = Kind.BROKER,
    changed: Annotated[bool, Option("--changed", help="Only those that differ from the default.")] = False,
    broker: OfBroker = None,
    cluster: Cluster = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the values and defaults of settings (changed ones are marked), and whether they can be set while a server runs.

    Defaults and reasons are those of Halfmoon's servers; of Apache's the values are shown.

    Example: halfmoon config get --changed
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        found = {server: _read(admin, of, server) for server in _servers(admin, of, nameserver, broker, cluster)}
    wanted = _wanted(of, keys or [], set().union(*found.values()))
    shown = {
        server: [row for row in setting_rows(of, settings) if row["setting"] in wanted and (row["changed"] or not changed)]
        for server, settings in found.items()
    }
    if as_json:
        show_json([{"server": server.name, "address": server.address, "settings": rows} for server, rows in shown.items()])
        return
    for server, rows in shown.items():
        cells = [("*" if row["changed"] else "", *(row[name] or "" for name in COLUMNS)) for row in rows]
        show_table(" ".join(dict.fromkeys(server)), ("", *COLUMNS), cells)


def _wanted(of: str, names: list[str], every: set[str]) -> set[str]:
    """Return the keys of settings by names, all keys without names. Raises UsageError where no server has such a setting."""
    known = known_settings(of)
    keys = {_key(known, name) for name in names}
    for key in sorted(keys - every):
        near = get_close_matches(key, every | known.keys(), 1)
        raise UsageError(f"there is no setting {key!r:.100}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return keys or every


@app.command("set")
def set_(
    assignments: Annotated[list[str], Argument(metavar="SETTING=VALUE...", help="By RocketMQ's key or ours.")],
    of: Of = Kind.BROKER,
    broker: OfBroker = None,
    cluster: Cluster = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Change settings of running servers, which keep them over a restart; then read them back, and say what took no effect.

    A Halfmoon server takes all of them or none. Exit code 1: a server refused or did not answer, or something took no effect.

    Example: halfmoon config set transactionTimeOut=10000 --broker broker-a
    """
    values = {_key(known_settings(of), key): value for key, value in pairs(assignments, "setting").items()}
    with halfmoon.Admin(nameserver=nameserver) as admin:
        outcomes = [_change(admin, of, server, values) for server in _servers(admin, of, nameserver, broker, cluster)]
    if as_json:
        show_json(outcomes)
    for outcome in outcomes if not as_json else ():
        for key, change in outcome["changed"].items():
            say(f"{outcome['server']}: {key} is {change['is']}, was {change['was']}")
        for key, why in outcome["without_effect"].items():
            say(f"{outcome['server']}: {key} took no effect: {why}", error=True)
        if outcome["error"]:
            say(f"{outcome['server']}: {outcome['error']}", error=True)
    if any(outcome["error"] or outcome["without_effect"] for outcome in outcomes):
        raise click.exceptions.Exit(1)


def _change(admin: halfmoon.Admin, of: str, server: AskedServer, values: dict[str, str]) -> dict[str, Any]:
    """Change settings of one server; return their values as it answers afterwards."""
    facts: dict[str, Any] = {"server": server.name, "address": server.address, "changed": {}, "without_effect": {}, "error": None}
    try:
        before = _read(admin, of, server)
        (admin.update_broker_config if of == "broker" else admin.update_name_server_config)(server.address, values)
        after = _read(admin, of, server)
    except HalfmoonError as exc:
        return {**facts, "error": f"refused: {exc.remark}" if isinstance(exc, BrokerError) else str(exc)}
    without = without_effect(of, values, after)
    changed = {key: {"was": before.get(key), "is": after[key]} for key in values if key not in without}
    return {**facts, "changed": changed, "without_effect": without}


def _servers(admin: halfmoon.Admin, of: str, nameserver: str, broker: str | None, cluster: str | None) -> list[AskedServer]:
    """Return the servers that a command asks: name servers, or masters.

    Raises UsageError if there is no such broker, NetworkError if it has no master.
    """
    if of == "nameserver":
        return [AskedServer(address, address) for address in split_addresses(nameserver)]
    info = admin.cluster()
    names = sorted(info.broker_addr_table if cluster is None else info.cluster_addr_table.get(cluster, []))
    servers = [AskedServer(name, address) for name in names if (address := info.broker_addr_table[name].broker_addrs.get(0))]
    chosen = [server for server in servers if broker is None or broker in server]
    waiting = {name: info.broker_addr_table[name].broker_addrs for name in names if broker in (None, name)}
    if not chosen and (waiting or not info.broker_addr_table):
        raise NetworkError(absent_text(waiting))
    if not chosen:
        raise UsageError(f"there is no such broker; known: {', '.join(server.name for server in servers) or 'none'}")
    return chosen


def _read(admin: halfmoon.Admin, of: str, server: AskedServer) -> dict[str, str]:
    return (admin.broker_config if of == "broker" else admin.name_server_config)(server.address)


def _key(settings: dict[str, dict[str, Any]], text: str) -> str:
    """Return the key of a setting that is named by its key or by our name, with or without its table."""
    name = text.rpartition(".")[2]
    return next((key for key, each in settings.items() if text not in settings and each["name"] == name), text)
