"""The command that holds all others, its help and its errors. Loads a command's module only when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import takewhile
from shutil import get_terminal_size
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from halfmoon import __version__
from halfmoon.cli.shared import tls
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.output import report
from halfmoon.cli.shared.target import chosen, sign_with
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.hot import NATIVE

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
    "outbox": ("halfmoon.cli.outbox.commands", "Relay, list, retry, drop and resend events of a database outbox."),
    "spark": ("halfmoon.cli.spark.commands", "Topics as tables with Spark: ingest, SQL, lag, audits, replay."),
    "filter": ("halfmoon.cli.filter", "Try SQL92 filters without a broker."),
    "acl": ("halfmoon.cli.acl.commands", "List, add and remove accounts, and explain what one may do."),
    "config": ("halfmoon.cli.cluster.config", "Show and change the settings of running brokers and name servers."),
    "client": ("halfmoon.cli.cluster.clients", "List the producers and consumers that are connected."),
    "cluster": ("halfmoon.cli.cluster.overview", "Show clusters and their brokers."),
    "context": ("halfmoon.cli.contexts.commands", "Name clusters, and choose the one that commands ask."),
    "status": ("halfmoon.cli.status.command", "Show whether the cluster is healthy, degraded or down."),
    "console": ("halfmoon.cli.console.commands", "Look into a cluster and change it, in a browser."),
    "bench": ("halfmoon.cli.bench", "Benchmark a cluster with this client, which reaches its limit long before a broker does."),
    "fsck": ("halfmoon.cli.store.fsck", "Check every record of the log, and compare every index with it."),
    "backup": (
        "halfmoon.cli.store.backup",
        "Copy the store of a broker, which may go on running, so that a broker can start on the copy.",
    ),
    "completion": ("halfmoon.cli.completion.command", "Print the script with which bash, zsh or fish completes commands."),
    "demo": (
        "halfmoon.cli.demo.command",
        "Run the whole story with real processes, kill them with -9, and check that everything agrees.",
    ),
}
"""Each command, the module with its ``app``, and its line in the list of all, for which no module is imported."""


class Commands(TyperGroup):
    """Loads a command when it is run; a list of all shows their lines of the table."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return one command as it stands in a list, or None."""
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str, Any, list[str]]:
        """Return the command that arguments name, ready to run, and what is behind its name."""
        name, *rest = args
        if name not in COMMANDS:
            near = get_close_matches(name, COMMANDS, 1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return name, load(name), rest


def load(name: str) -> Any:
    """Return a command of the table, ready to run. The one place that imports by name: each command costs only what it needs."""
    apps = import_module(COMMANDS[name][0]).app
    command = typer.main.get_command(apps[name] if isinstance(apps, dict) else apps)
    command.name = name
    _lay_out(command, boxes=_columns() >= BOXES_MIN)
    return command


BOXES_MIN = 76
"""Columns from which on help and errors have boxes around them; with fewer, some names and times would be cut."""


def _columns() -> int:
    return get_terminal_size().columns


def _lay_out(command: Any, *, boxes: bool) -> None:
    if not boxes:
        command.rich_markup_mode = None
    # With boxes, Typer ends a line where one ends in the source: in all paragraphs but the first.
    command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    for each in getattr(command, "commands", {}).values():
        _lay_out(each, boxes=boxes)


ANYWHERE = ("--context", "--credentials")
"""Options of all commands that may stand in any place, with their values."""

WRONG_ARGUMENTS: Any = typer.BadParameter.__base__
"""What Typer raises for arguments that are wrong; it has no public name."""

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


def _version(asked: bool) -> None:
    if asked:
        say(f"halfmoon {__version__}, " + (f"with halfmoon-native {NATIVE}" if NATIVE else "without halfmoon-native"))
        raise typer.Exit


@app.callback()
def halfmoon(
    context: typer.Context,
    context_name: Annotated[
        str | None,
        typer.Option("--context", metavar="CONTEXT", help="Ask the cluster of this context (halfmoon context; HALFMOON_CONTEXT)."),
    ] = None,
    credentials: Annotated[
        str | None,
        typer.Option("--credentials", metavar="FILE", help="File with accessKey and secretKey that sign all requests (access.md)."),
    ] = None,
    show_version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
    encrypted: tls.Tls = False,
    tls_ca: tls.Ca = None,
    tls_cert: tls.Cert = None,
    tls_key: tls.Key = None,
    tls_server_name: tls.ServerName = None,
    tls_no_verify: tls.NoVerify = False,
) -> None:
    """Transactional messaging for Python on the RocketMQ protocol.

    Exit codes: 0 done, 1 refused or found something, 2 a wrong argument or setting.

    Example: halfmoon serve --data ./data
    """
    context.call_on_close(tls.into_environment(encrypted, tls_ca, tls_cert, tls_key, tls_server_name, tls_no_verify))
    if credentials is not None:
        context.call_on_close(sign_with(credentials))
    if context_name:
        chosen(context_name)  # an unknown one is refused whatever the command


def run(arguments: Sequence[str]) -> int:
    """Run what the arguments ask for and return the exit code."""
    as_json = "--json" in takewhile("--".__ne__, arguments)
    command, boxes = typer.main.get_command(app), _columns() >= BOXES_MIN
    width = None if boxes else _columns()
    _lay_out(command, boxes=boxes)
    try:
        given = tls.first(arguments, ANYWHERE)
        code = command.main(
            args=given, prog_name="halfmoon", obj={"json": as_json}, standalone_mode=not as_json, terminal_width=width
        )  # fmt: skip
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except WRONG_ARGUMENTS as exc:
        return report(UsageError(exc.format_message()), as_json=as_json)
    except typer.Abort:
        return report(HalfmoonError("aborted"), as_json=as_json)
    except HalfmoonError as exc:
        return report(exc, as_json=as_json)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    return code if isinstance(code, int) else 0
