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
    "serve": ("halfmoon.cli.server_help", "Run a name server and a broker in one process."),
    "nameserver": ("halfmoon.cli.server_help", "Run a name server alone."),
    "broker": ("halfmoon.cli.server_help", "Run a broker alone: another master of a cluster."),
    "topic": ("halfmoon.cli.topic", "Create, list, show and delete topics."),
    "group": ("halfmoon.cli.group", "Consumer groups and their progress."),
    "produce": ("halfmoon.cli.produce", "Send messages; each is stored when its line appears."),
    "consume": ("halfmoon.cli.consume", "Show messages of a topic: what is there now, or with --follow whatever comes."),
    "msg": ("halfmoon.cli.msg", "Find stored messages."),
    "tx": ("halfmoon.cli.tx", "Transactions: what waits for a decision, and decisions by hand."),
    "delay": ("halfmoon.cli.delay", "Messages that wait for their time."),
    "dlq": ("halfmoon.cli.dlq", "Dead letters: what consumer groups gave up, and sending it again."),
    "events": ("halfmoon.cli.events", "Events: run consumers, and see what is declared."),
    "outbox": ("halfmoon.cli.outbox", "The outbox: events that wait in a database to be sent."),
    "spark": ("halfmoon.cli.spark", "Topics as tables, with Spark: audits, lag, SQL, dead letters, tables."),
    "filter": ("halfmoon.cli.filter", "Try SQL92 filters without a broker."),
    "status": ("halfmoon.cli.status", "Say how the cluster is: healthy, degraded or down."),
    "bench": ("halfmoon.cli.bench", "Measure a cluster with this client. The client itself is the limit long before a broker is."),
    "fsck": ("halfmoon.cli.fsck", "Check every record of the log, and compare every index with the log."),
    "demo": (
        "halfmoon.cli.demo.command",
        "Decide orders in a database while their messages are half, kill who takes part with -9, and count: all agree.",
    ),
}
"""Each command, the module whose ``app`` it is, and its line in the list of all: that costs the import of none."""

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
    return import_module(COMMANDS[command][0])


if __name__ == "__main__":
    sys.exit(main())
