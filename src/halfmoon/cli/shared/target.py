"""Which cluster a command asks, and who signs what it asks: options, then variables, then the context in use, then the default.

A context that ``--context`` or HALFMOON_CONTEXT names stands before the other variables, the one in use behind them. It reaches the
clients as the variables do that it stands for, also those of processes that a command starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec
import typer

from halfmoon.cli.contexts.file import DEFAULT, Context, read
from halfmoon.cli.shared import tls
from halfmoon.cli.shared.lines import say

CREDENTIALS = ("HALFMOON_CREDENTIALS", "HALFMOON_ACCESS_KEY", "HALFMOON_SECRET_KEY", "HALFMOON_SECURITY_TOKEN")
"""Variables that say who signs: a file, or what else stands in it."""
VARIABLE, IN_USE = "HALFMOON_CONTEXT", "in use"

CHANGING = frozenset({
    "topic create", "topic delete", "group create", "group delete", "group reset", "produce", "msg resend", "tx check",
    "tx commit", "tx rollback", "tx resume", "delay cancel", "dlq replay", "outbox relay", "acl add", "acl remove", "config set",
    "bench send", "bench tx", "spark replay", "spark dlq replay",
})  # fmt: skip
"""Commands that change a cluster. They name the context that they act on, to standard error, unless it is the default."""


class Chosen(NamedTuple):
    """A context, and what chose it; the default one is None."""

    name: str
    by: str
    context: Context | None


def chosen(option: str | None) -> Chosen:
    """Return the context that an option names, else the variable, else the one in use. Raises SettingError for an unknown one."""
    if name := option or os.environ.get(VARIABLE, ""):
        return Chosen(name, "--context" if option else VARIABLE, None if name == DEFAULT else read().named(name))
    if os.environ.get("NAMESRV_ADDR"):
        return Chosen(DEFAULT, "NAMESRV_ADDR", None)
    found = read()
    return Chosen(found.in_use, IN_USE, found.named(found.in_use))


def name_servers(context: typer.Context, param: typer.CallbackParam, value: str) -> str:
    """Return the name servers that a command asks; until it ends, its clients sign and encrypt as the context says that has them.

    The callback of ``--nameserver``. Raises typer.BadParameter where it and ``--context`` are both given, SettingError.
    """
    root = context.find_root()
    option, source = root.params.get("context_name"), context.get_parameter_source(param.name or "")
    if source is not None and source.name == "COMMANDLINE":
        if option:
            raise typer.BadParameter("give either --nameserver or --context")
        return value
    found = chosen(option)
    if found.context is None:
        return value
    root.call_on_close(enter(found, root.params))
    if context.command_path.partition(" ")[2] in CHANGING and not (root.obj or {}).get("json"):
        say(f"context {found.name}: {found.context.nameserver}", error=True)
    return found.context.nameserver


def enter(found: Chosen, options: Mapping[str, Any]) -> Callable[[], None]:
    """Have the clients of this process sign and encrypt as a context says, as far as no option does; return what undoes that.

    Of the context in use, what variables say of either is left to them.
    """
    if found.context is None:
        return lambda: None
    given = {name for name, value in os.environ.items() if value and found.by == IN_USE}
    undo = ExitStack()
    if found.context.credentials and not options.get("credentials") and not given.intersection(CREDENTIALS):
        undo.callback(sign_with(found.context.credentials))
    if not any(map(options.get, tls.NAMES)) and not any(name.startswith("HALFMOON_TLS") for name in given):
        undo.callback(tls.into_environment(*msgspec.structs.astuple(found.context)[2:]))
    return undo.close


def sign_with(file: str) -> Callable[[], None]:
    """Have all clients of this process, and of processes that it starts, sign with a file; return what undoes that."""
    before = {name: os.environ.pop(name, None) for name in CREDENTIALS}
    os.environ[CREDENTIALS[0]] = file

    def undo() -> None:
        del os.environ[CREDENTIALS[0]]
        os.environ.update({name: value for name, value in before.items() if value is not None})

    return undo
