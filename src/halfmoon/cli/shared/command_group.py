"""Group of all commands, its help and its errors. Loads a command's module only when that command is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from inspect import cleandoc
from itertools import takewhile
from shutil import get_terminal_size
from typing import Annotated, Any

import click
from click.shell_completion import shell_complete

from halfmoon import __version__
from halfmoon.cli.shared.app import App, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.output import report
from halfmoon.cli.shared.suggestions import with_suggestions
from halfmoon.cli.shared.target import Ca, Cert, Key, NoVerify, ServerName, Tls, chosen, enter_options, first
from halfmoon.documentation import see
from halfmoon.errors import HalfmoonError, UsageError

COMMANDS = {
    "serve": ("", "Run a name server and a broker in one process."),
    "nameserver": ("", "Run a name server alone."),
    "broker": ("", "Run a broker alone: another master of a cluster."),
    "topic": ("halfmoon.cli.topic", "Create, list, show, trim and delete topics."),
    "group": ("halfmoon.cli.group", "List, show, create, delete and reset consumer groups."),
    "produce": ("halfmoon.cli.produce.command", "Send messages, and print a line for each one that is stored."),
    "consume": ("halfmoon.cli.consume.command", "Show the messages of a topic; with --follow, also new ones as they arrive."),
    "request": ("halfmoon.cli.produce.request", "Send a request, wait for the reply of a consumer, and print its body."),
    "reply": ("halfmoon.cli.produce.reply", "Reply to the requests of a topic until Ctrl-C, and print a line for each."),
    "msg": ("halfmoon.cli.msg", "Find stored messages."),
    "tx": ("halfmoon.cli.tx.commands", "Show pending transactions, and decide them by hand."),
    "delay": ("halfmoon.cli.delay", "List and cancel delayed messages."),
    "dlq": ("halfmoon.cli.dlq.commands", "List, show and replay dead letters."),
    "events": ("halfmoon.cli.events", "Run event consumers, and list what is declared."),
    "outbox": ("halfmoon.cli.outbox.commands", "Relay, list, retry, drop and resend events of a database outbox."),
    "sql": ("halfmoon.cli.sql.command", "Query topics with SQL, on DuckDB."),
    "spark": ("halfmoon.cli.spark.commands", "Topics as tables with Spark: ingest, SQL, lag, audits, replay."),
    "filter": ("halfmoon.cli.filter", "Try SQL92 filters without a broker."),
    "acl": ("halfmoon.cli.acl.commands", "List, add and remove accounts, and explain what one may do."),
    "config": ("halfmoon.cli.cluster.config", "Show and change the settings of running brokers and name servers."),
    "client": ("halfmoon.cli.cluster.clients", "List the producers and consumers that are connected."),
    "cluster": ("halfmoon.cli.cluster.overview", "Show clusters and their brokers; change the master of a pair."),
    "context": ("halfmoon.cli.contexts.commands", "Name clusters, and choose the one that commands ask."),
    "status": ("halfmoon.cli.status.command", "Show whether the cluster is healthy, degraded or down."),
    "console": ("halfmoon.cli.console.commands", "Look into a cluster and change it, in a browser."),
    "bench": (
        "halfmoon.cli.bench.commands",
        "Benchmark a cluster with this client, which reaches its limit long before a broker does.",
    ),
    "fsck": ("halfmoon.cli.store.fsck", "Check every record of the log, and compare every index with it."),
    "backup": (
        "halfmoon.cli.store.backup",
        "Copy the store of a broker, which may go on running, so that a broker can start on the copy.",
    ),
    "doctor": (
        "halfmoon.cli.doctor.command",
        "Check what clients and servers need, here and in the cluster, and name the remedy of each problem.",
    ),
    "docs": ("halfmoon.cli.docs", "Show a page of the documentation that belongs to this version, or list all pages."),
    "completion": ("halfmoon.cli.completion", "Print the script with which bash, zsh or fish completes commands."),
    "demo": (
        "halfmoon.cli.demo",
        "Run the whole story with real processes, kill them with -9, and check that everything agrees.",
    ),
}
"""Each command, the module with its ``app`` (empty: a server), and its line in the list of all, for which no module is imported."""

COMPLETE = "_HALFMOON_COMPLETE"
"""Variable with which shells ask for words that may stand next."""
WIDTH_MAX = 120
"""Columns of the help on a wide terminal."""


class Commands(App):
    """Group that loads a command when it is run; a list of all shows their lines of the table."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the options of all commands wherever they stand."""
        return super().make_context(info_name, first(args), parent, **extra)

    def names(self, kind: str, context: click.Context, begun: str) -> list[str]:
        """Return names of the cluster, or of contexts, that may stand next."""
        from halfmoon.cli.completion import names  # only where a shell asks

        return names(kind, context, begun)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one command as it stands in a list, or None."""
        return click.Command(cmd_name, help=COMMANDS[cmd_name][1]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that arguments name, ready to run, and the arguments behind its name."""
        name, *rest = args
        if name in COMMANDS:
            return name, load(name), rest
        if not ctx.resilient_parsing:
            raise click.exceptions.NoSuchCommand(name, possibilities=COMMANDS, ctx=ctx)
        return None, None, rest


def load(name: str) -> click.Command:
    """Return a command of the table, ready to run. The one place that imports by name: each command costs only what it needs."""
    module, _ = COMMANDS[name]
    if not module:
        return _server(name)
    app: App = import_module(module).app
    command = app if app.help is not None else next(iter(app.commands.values()))
    command.name = name
    return command


def _server(name: str) -> click.Command:
    """Return a command with the options of a server: for its help, and for messages about wrong ones."""
    from halfmoon.cli.servers import HELP, OPTIONS, Flag, serve

    def start(**values: Any) -> None:
        sys.exit(serve(name, {option: list(value) if isinstance(value, tuple) else value for option, value in values.items()}))

    def option_of(flag: Flag) -> click.Option:
        kind: dict[str, Any] = {"metavar": flag.metavar, "multiple": flag.many} if flag.metavar else {"is_flag": True}
        return click.Option([flag.flag], help=flag.why, show_default=flag.default or False, **kind)

    options = [option_of(flag) for flag in OPTIONS[name]]
    return click.Command(name, params=[*options], callback=start, help=cleandoc(HELP[name]))


app = Commands(name="halfmoon", no_args_is_help=True)


def _version(context: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        from halfmoon.hot import NATIVE

        say(f"halfmoon {__version__}, " + (f"with halfmoon-native {NATIVE}" if NATIVE else "without halfmoon-native"))
        context.exit()


@app.before
def halfmoon(
    context_name: Annotated[
        str | None,
        Option("--context", metavar="CONTEXT", help="Ask the cluster of this context (halfmoon context; HALFMOON_CONTEXT)."),
    ] = None,
    credentials: Annotated[
        str | None,
        Option(
            "--credentials", metavar="FILE", help=f"File with accessKey and secretKey that sign all requests ({see('access')})."
        ),
    ] = None,
    show_version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
    encrypted: Tls = False,
    tls_ca: Ca = None,
    tls_cert: Cert = None,
    tls_key: Key = None,
    tls_server_name: ServerName = None,
    tls_no_verify: NoVerify = False,
) -> None:
    """Transactional messaging for Python on the RocketMQ protocol.

    Exit codes: 0 done, 1 refused or found something, 2 a wrong argument or setting.

    Options for the context, credentials and encrypted connections may stand at any place in a command.

    Example: halfmoon serve --data ./data
    """
    context = click.get_current_context()
    context.call_on_close(enter_options(context.params))
    if context_name:
        chosen(context_name)  # an unknown one is refused whatever the command


def run(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; return the exit code."""
    if instruction := os.environ.get(COMPLETE):
        return shell_complete(app, {}, "halfmoon", COMPLETE, instruction)
    as_json = not {"--json", "--jsonl"}.isdisjoint(takewhile("--".__ne__, arguments))
    width = min(get_terminal_size().columns, WIDTH_MAX)
    try:
        context = app.make_context("halfmoon", [*arguments], obj={"json": as_json}, show_default=True, terminal_width=width)
        with context:
            app.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except click.ClickException as exc:
        if isinstance(exc, click.NoSuchOption | click.NoSuchCommand):
            exc = with_suggestions(exc)
        if as_json:
            return report(UsageError(exc.format_message()), as_json=True)
        exc.show(sys.stdout if isinstance(exc, click.exceptions.NoArgsIsHelpError) else None)  # a help page is no error message
        return exc.exit_code
    except click.Abort:
        return report(HalfmoonError("Not done."), as_json=as_json)
    except HalfmoonError as exc:
        return report(exc, as_json=as_json)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    return 0
