"""Generator of the systemd units of the broker alone and of the name server alone, from the unit of both."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.generated import write_or_check

PACKAGING = Path(__file__).resolve().parent.parent / "packaging"
UNIT = PACKAGING / "halfmoon.service"
UNITS: dict[str, dict[str, str]] = {
    "nameserver": {
        "A broker with its name server under systemd": "A name server alone, such as those of a pair of brokers, under systemd",
        "Description=Halfmoon broker and name server": "Description=Halfmoon name server",
        "SERVE_OPTIONS": "NAMESERVER_OPTIONS",
        "such as --host and --acl": "such as --host",
        "halfmoon serve ": "halfmoon nameserver ",
        "StateDirectory=halfmoon\n": "StateDirectory=halfmoon-nameserver\n",
        "# Recovery after a power loss reads the log since the last checkpoint, and rebuilds missing files.\n": "",
        "TimeoutStartSec=15min\n": "",
    },
    "broker": {
        "A broker with its name server under systemd": "A broker alone, such as a member of a pair, under systemd",
        "Description=Halfmoon broker and name server": "Description=Halfmoon broker",
        "After=network-online.target": "After=network-online.target halfmoon-nameserver.service",
        "Wants=network-online.target": "Wants=network-online.target\nConflicts=halfmoon.service",
        "SERVE_OPTIONS": "BROKER_OPTIONS",
        "such as --host and --acl": "such as --host and --nameserver",
        "halfmoon serve ": "halfmoon broker ",
    },
}
"""Differences from the unit of both, by the command. A broker has the directory of that unit, and goes on with its store."""


def unit(command: str) -> str:
    """Return the unit of one command. Raises ValueError: the unit of both has not what is replaced."""
    text = UNIT.read_text()
    for old, new in UNITS[command].items():
        if old not in text:
            raise ValueError(f"{UNIT.name} has no {old!r}")
        text = text.replace(old, new)
    first, rest = text.split("\n", 1)
    return f"{first}\n# Written by tools/generate_units.py: change that, or {UNIT.name}.\n{rest}"


def path_of(command: str) -> Path:
    """Return the file of the unit of one command."""
    return PACKAGING / f"halfmoon-{command}.service"


if __name__ == "__main__":
    sys.exit(max(write_or_check(path_of(command), unit(command), sys.argv[1:]) for command in UNITS))
