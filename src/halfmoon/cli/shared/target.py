"""Cluster and account of a command, from options, then variables, then the context in use, then the default.

A context that ``--context`` or HALFMOON_CONTEXT names precedes the other variables, the one in use follows them. A context sets
these variables for the clients, also for those of processes that a command starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import click

from halfmoon.cli.shared.app import Option, given_on_the_command_line
from halfmoon.cli.shared.lines import say
from halfmoon.client.constructors.name_servers import NAMESERVER_VARIABLES, default_name_servers

if TYPE_CHECKING:
    from halfmoon.cli.contexts.file import ClusterContext

CREDENTIALS = ("HALFMOON_CREDENTIALS", "HALFMOON_ACCESS_KEY", "HALFMOON_SECRET_KEY", "HALFMOON_SECURITY_TOKEN")
"""Variables with the account: a file, or its contents."""
VARIABLE, IN_USE = "HALFMOON_CONTEXT", "in use"

CHANGING = frozenset({
    "topic create", "topic delete", "topic trim", "group create", "group delete", "group reset", "group skip", "produce",
    "request", "reply", "msg resend", "tx check", "tx commit", "tx rollback", "tx resume", "delay cancel", "dlq replay",
    "outbox relay", "acl add", "acl rotate", "acl remove", "config set", "bench send", "bench tx", "spark replay",
    "spark dlq replay",
})  # fmt: skip
"""Commands that change a cluster. They name the context that they act on, to standard error, unless it is the default."""


class ChosenContext(NamedTuple):
    """Context, with the source of the choice; None: the default one."""

    name: str
    by: str
    context: ClusterContext | None


def chosen(option: str | None) -> ChosenContext:
    """Return the context that an option names, else the variable, else the one in use. Raises SettingError for an unknown one."""
    from halfmoon.cli.contexts.file import DEFAULT, read

    if name := option or os.environ.get(VARIABLE, ""):
        return ChosenContext(name, "--context" if option else VARIABLE, None if name == DEFAULT else read().named(name))
    if variable := default_name_servers(os.environ).variable:
        return ChosenContext(DEFAULT, variable, None)
    found = read()
    return ChosenContext(found.in_use, IN_USE, found.named(found.in_use))


def name_servers(context: click.Context, param: click.Parameter, value: str) -> str:
    """Return the name servers of a command; until it ends, its clients sign and encrypt as their context says.

    Callback of ``--nameserver``. Raises click.BadParameter where it and ``--context`` are both given, SettingError.
    """
    root = context.find_root()
    option = root.params.get("context_name")
    if given_on_the_command_line(context, param.name or ""):
        if option:
            raise click.BadParameter("give either --nameserver or --context")
        return value
    found = chosen(option)
    if found.context is None:
        if found.by in NAMESERVER_VARIABLES and (conflict := default_name_servers(os.environ).conflict):
            say(f"warning: {conflict}", error=True)
        return value
    root.call_on_close(enter(found, root.params))
    if context.command_path.partition(" ")[2] in CHANGING and not (root.obj or {}).get("json"):
        say(f"context {found.name}: {found.context.nameserver}", error=True)
    return found.context.nameserver


def enter(found: ChosenContext, options: Mapping[str, Any]) -> Callable[[], None]:
    """Have the clients of this process sign and encrypt as a context says, unless options do; return a function that undoes that.

    Variables precede the context in use.
    """
    if found.context is None:
        return lambda: None
    given = {name for name, value in os.environ.items() if value and found.by == IN_USE}
    undo = ExitStack()
    if found.context.credentials and not options.get("credentials") and not given.intersection(CREDENTIALS):
        undo.callback(sign_with(found.context.credentials))
    if not any(map(options.get, NAMES)) and not any(name.startswith("HALFMOON_TLS") for name in given):
        undo.callback(into_environment(*found.context.encryption))
    return undo.close


def sign_with(file: str) -> Callable[[], None]:
    """Have all clients of this process, and of processes that it starts, sign with a file; return a function that undoes that."""
    before = {name: os.environ.pop(name, None) for name in CREDENTIALS}
    os.environ[CREDENTIALS[0]] = file

    def undo() -> None:
        del os.environ[CREDENTIALS[0]]
        os.environ.update({name: value for name, value in before.items() if value is not None})

    return undo


# ---------------------------------------------------------------- options of all commands

Tls = Annotated[bool, Option("--tls", help="Encrypt connections to servers (HALFMOON_TLS).")]
Ca = Annotated[str | None, Option("--tls-ca", metavar="FILE", help="CA certificates (PEM) that sign those of servers.")]
Cert = Annotated[str | None, Option("--tls-cert", metavar="FILE", help="Certificate (PEM) to show to servers.")]
Key = Annotated[str | None, Option("--tls-key", metavar="FILE", help="Its private key (PEM).")]
ServerName = Annotated[str | None, Option("--tls-server-name", metavar="NAME", help="Name in every server's certificate.")]
NoVerify = Annotated[
    bool, Option("--tls-no-verify", help="Insecure: accept any certificate, which allows man-in-the-middle attacks.")
]

NAMES = ("encrypted", "tls_ca", "tls_cert", "tls_key", "tls_server_name", "tls_no_verify")
"""Parameters of the group of all commands for these options, in the order of `into_environment`."""
_SWITCHES = ("--tls", "--tls-no-verify")
_WITH_VALUE = ("--context", "--credentials", "--tls-ca", "--tls-cert", "--tls-key", "--tls-server-name")


def first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the options of all commands in front, where the group of all commands reads them."""
    ours: list[str] = []
    others: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            others += [argument, *rest]
        elif argument in _SWITCHES or argument.partition("=")[0] in _WITH_VALUE:
            ours.append(argument)
            if argument in _WITH_VALUE:
                ours += [value for value in [next(rest, None)] if value is not None]
        else:
            others.append(argument)
    return ours + others


def enter_options(options: Mapping[str, Any]) -> Callable[[], None]:
    """Have the clients of this process sign and encrypt as options say; return a function that undoes that."""
    undo = ExitStack()
    undo.callback(into_environment(*map(options.get, NAMES)))
    if options.get("credentials") is not None:
        undo.callback(sign_with(options["credentials"]))
    return undo.close


def into_environment(
    tls: bool | None, ca: str | None, cert: str | None, key: str | None, server_name: str | None, no_verify: bool | None
) -> Callable[[], None]:
    """Set the variables that clients read by default; return a function that undoes that.

    Each of the options switches TLS on.
    """
    if not (tls or ca or cert or key or server_name or no_verify):
        return lambda: None
    values = {
        "HALFMOON_TLS": "true", "HALFMOON_TLS_CA": ca, "HALFMOON_TLS_CERT": cert, "HALFMOON_TLS_KEY": key,
        "HALFMOON_TLS_SERVER_NAME": server_name, "HALFMOON_TLS_VERIFY": "false" if no_verify else None,
    }  # fmt: skip
    given = {name: value for name, value in values.items() if value}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)

    def undo() -> None:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

    return undo
