"""Default name servers: those that the environment names where no argument does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

NAMESERVER_VARIABLES = ("HALFMOON_NAMESERVER", "NAMESRV_ADDR")
"""Variables with the default name servers, the first one that is set; the second is RocketMQ's."""


class DefaultNameServers(NamedTuple):
    """Name servers that the environment names, and the variable that does; empty for none.

    ``conflict`` says which variable is used where they name different ones; empty otherwise.
    """

    addresses: str
    variable: str
    conflict: str


def default_name_servers(environment: Mapping[str, str]) -> DefaultNameServers:
    """Return the name servers of the environment."""
    given = {variable: environment[variable] for variable in NAMESERVER_VARIABLES if environment.get(variable, "").strip()}
    if not given:
        return DefaultNameServers("", "", "")
    variable, addresses = next(iter(given.items()))
    conflict = ""
    if len({frozenset(map(str.strip, text.replace(",", ";").split(";"))) - {""} for text in given.values()}) > 1:
        named = " and ".join(f"{name}={text}" for name, text in given.items())
        conflict = f"{named} name different name servers: {variable} is used; unset the other one"
    return DefaultNameServers(addresses, variable, conflict)
