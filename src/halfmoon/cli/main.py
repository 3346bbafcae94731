"""``halfmoon``: the table of commands, and the way to them. Loads a command's module only when that command is asked for.

`serve`, `nameserver` and `broker` are reached without loading the machinery of options and tables, so that they are ready sooner.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from halfmoon.cli.lines import take_all_characters

COMMANDS = {
    "serve": "halfmoon.cli.server_help",
    "nameserver": "halfmoon.cli.server_help",
    "broker": "halfmoon.cli.server_help",
    "topic": "halfmoon.cli.topic",
    "group": "halfmoon.cli.group",
    "produce": "halfmoon.cli.produce",
    "consume": "halfmoon.cli.consume",
    "msg": "halfmoon.cli.msg",
    "tx": "halfmoon.cli.tx",
    "delay": "halfmoon.cli.delay",
    "dlq": "halfmoon.cli.dlq",
    "events": "halfmoon.cli.events",
    "outbox": "halfmoon.cli.outbox",
    "spark": "halfmoon.cli.spark",
    "filter": "halfmoon.cli.filter",
    "status": "halfmoon.cli.status",
    "bench": "halfmoon.cli.bench",
    "fsck": "halfmoon.cli.fsck",
    "demo": "halfmoon.cli.demo.command",
}
"""Each command and the module whose ``app`` it is."""

SERVERS = frozenset(("serve", "nameserver", "broker"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 done, 1 refused or found something, 2 a wrong argument or setting."""
    take_all_characters()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in SERVERS:
        code = import_module("halfmoon.cli.servers").run_quickly(given[0], given[1:])
        if code is not None:
            return int(code)
    return int(import_module("halfmoon.cli.group_of_commands").run(given))


def module(command: str) -> Any:
    """Return the module of a command. The one place of the package that imports by name: each command costs only what it needs."""
    return import_module(COMMANDS[command])


if __name__ == "__main__":
    sys.exit(main())
