"""`halfmoon doctor`: looks for what keeps clients and servers from working here, and names the remedies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import click

from halfmoon.cli.doctor.check import PROBLEM, Check
from halfmoon.cli.doctor.machine import machine
from halfmoon.cli.doctor.servers import cluster, group, name_server, ports
from halfmoon.cli.shared.app import App, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Groups, Json, NameServer
from halfmoon.cli.shared.output import show_json
from halfmoon.cli.shared.places import data_home
from halfmoon.errors import HalfmoonError, text_of
from halfmoon.shown.texts import count_text

app = App()


@app.command()
def doctor(
    groups: Groups = None,
    data: Annotated[Path | None, Option("--data", metavar="DIR", help="Data directory of servers on this machine.")] = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Check what clients and servers need, here and in the cluster, and name the remedy of each problem.

    Python, halfmoon-native, Java (for Spark), open files, disk, ports; which server each address is, round trips, TLS, the account,
    clocks, and versions; with --group those of all its members. Exit code 1 if there is a problem.

    Example: halfmoon doctor --group C_shop
    """
    found = []
    place = data or (Path(os.environ["HALFMOON_DATA"]).expanduser() if os.environ.get("HALFMOON_DATA") else data_home(os.environ))
    for check in _checks(place, nameserver, groups or []):
        found.append(check)
        if not as_json:
            check.show()
    problems = sum(check.state == PROBLEM for check in found)
    if as_json:
        show_json({"problems": problems, "checks": [check._asdict() for check in found]})
    else:
        say(count_text(problems, "problem"))
    if problems:
        raise click.exceptions.Exit(1)


def _checks(data: Path, nameserver: str, groups: list[str]) -> Iterator[Check]:
    yield from machine(data)
    yield from ports()
    servers = [check for address in nameserver.split(";") if address.strip() for check in name_server(address.strip())]
    yield from servers
    if all(check.state == PROBLEM for check in servers):
        return
    try:
        yield from cluster(nameserver)
    except HalfmoonError as exc:
        yield Check("brokers", PROBLEM, text_of(exc), "see the checks of the name servers above")
        return
    for name in groups:
        yield group(nameserver, name)
