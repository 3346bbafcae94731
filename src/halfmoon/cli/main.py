"""``halfmoon``: the table of commands. Loads a command's module only when that command runs.

`serve`, `nameserver` and `broker` start without loading Typer and Rich, so that they are ready sooner.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from halfmoon.cli.shared.lines import take_all_characters

COMMANDS = {
    "serve": ("halfmoon.cli.shared.server_help", "Run a name server and a broker in one process."),
    "nameserver": ("halfmoon.cli.shared.server_help", "Run a name server alone."),
    "broker": ("halfmoon.cli.shared.server_help", "Run a broker alone: another master of a cluster."),
    "topic": ("halfmoon.cli.topic", "Create, list, show and delete topics."),
    "group": ("halfmoon.cli.group", "List, show, create, delete and reset consumer groups."),
    "produce": ("halfmoon.cli.produce", "Send messages, and print a line for each one that is stored."),
    "consume": ("halfmoon.cli.consume", "Show the messages of a topic; with --follow, also new ones as they arrive."),
    "msg": ("halfmoon.cli.msg", "Find stored messages."),
    "tx": ("halfmoon.cli.tx.commands", "Show pending transactions, and decide them by hand."),
    "delay": ("halfmoon.cli.delay", "List and cancel delayed messages."),
    "dlq": ("halfmoon.cli.dlq", "List, show and replay dead letters."),
    "events": ("halfmoon.cli.events", "Run event consumers, and list what is declared."),
    "outbox": ("halfmoon.cli.outbox.commands", "Relay, list, retry and drop events in a database outbox."),
    "spark": ("halfmoon.cli.spark.commands", "Topics as tables with Spark: ingest, SQL, lag, audits, replay."),
    "filter": ("halfmoon.cli.filter", "Try SQL92 filters without a broker."),
    "status": ("halfmoon.cli.status", "Show whether the cluster is healthy, degraded or down."),
    "bench": ("halfmoon.cli.bench", "Benchmark a cluster with this client, which reaches its limit long before a broker does."),
    "fsck": ("halfmoon.cli.fsck", "Check every record of the log, and compare every index with it."),
    "demo": (
        "halfmoon.cli.demo.command",
        "Run the whole story with real processes, kill them with -9, and check that everything agrees.",
    ),
}
"""Each command, the module with its ``app``, and its line in the list of all, for which no module is imported."""

SERVERS = frozenset(("serve", "nameserver", "broker"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 done, 1 refused or found something, 2 a wrong argument or setting."""
    take_all_characters()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in SERVERS:
        code = import_module("halfmoon.cli.servers").run_server(given[0], given[1:])
        if code is not None:
            return int(code)
    return int(import_module("halfmoon.cli.shared.command_group").run(given))


def module(command: str) -> Any:
    """Return the module of a command. It is imported by name, so that each command loads only what it needs."""
    return import_module(COMMANDS[command][0])


if __name__ == "__main__":
    sys.exit(main())
