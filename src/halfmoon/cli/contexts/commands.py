"""`halfmoon context`: named clusters, and the one that commands ask."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from halfmoon.cli.contexts.file import DEFAULT, ClusterContext, Contexts, change, read
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Json
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.cli.shared.target import chosen
from halfmoon.client.constructors.name_servers import NAMESERVER_VARIABLES, default_name_servers
from halfmoon.errors import SettingError

app = App(
    help="Name clusters, and choose the one that commands ask.\n\n"
    "A context has the name servers of a cluster, and the paths of files that sign (--credentials) and encrypt (--tls and the "
    "options beside it). --nameserver comes first, then --context, the variables HALFMOON_CONTEXT, HALFMOON_NAMESERVER and "
    "NAMESRV_ADDR, the context in use, and 127.0.0.1:9876. A command that changes a cluster writes the name of its context to "
    "standard error, unless it is the default.\n\nExample: halfmoon context add prod --nameserver mq1:9876",
)

Name = Annotated[str, Argument(metavar="CONTEXT", help="Name of the context.")]


@app.command()
def add(
    name: Name,
    nameserver: Annotated[str, Option("--nameserver", "-n", metavar="ADDRESSES", help="Name servers, host:port separated by ';'.")],
    replace: Annotated[bool, Option("--replace", help="Replace the context if there is one of this name.")] = False,
    as_json: Json = False,
) -> None:
    """Add a context; --credentials, --tls and the options beside it are kept in it. Secrets are not, only the paths of files.

    Example: halfmoon context add prod --nameserver 'mq1:9876;mq2:9876' --credentials prod.yml --tls
    """
    given = click.get_current_context().find_root().params
    credentials, ca, cert, key = (_absolute(given[option]) for option in ("credentials", "tls_ca", "tls_cert", "tls_key"))
    server_name, no_verify = given["tls_server_name"] or "", given["tls_no_verify"]
    made = ClusterContext(nameserver, credentials, given["encrypted"], ca, cert, key, server_name, no_verify)

    def put(known: Contexts) -> None:
        if name in known.contexts and not replace:
            raise SettingError(f"there is a context {name} already: give --replace, or another name")
        known.contexts[name] = made

    _answer(change(put), name, f"context {name} is added; to use it: halfmoon context use {name}", as_json=as_json)


@app.command("list")
def list_contexts(as_json: Json = False) -> None:
    """List the contexts; the one in use is marked.

    Example: halfmoon context list
    """
    known = read()
    names = [DEFAULT, *sorted(known.contexts)]
    if as_json:
        show_json([_facts(known, name) for name in names])
        return
    show_table("", ("in use", "context", "name servers", "credentials", "TLS"), [_cells(known, name) for name in names])


@app.command()
def use(name: Name, as_json: Json = False) -> None:
    """Use the cluster of a context from now on; "default" uses none.

    Example: halfmoon context use prod
    """

    def put(known: Contexts) -> None:
        known.in_use = name

    _answer(change(put), name, f"context {name} is in use", as_json=as_json)


@app.command()
def show(
    name: Annotated[str | None, Argument(metavar="CONTEXT", help="Name of the context.")] = None,
    as_json: Json = False,
) -> None:
    """Show a context; without a name the one that a command would use now, and the source of this choice.

    Example: halfmoon context show
    """
    by = ""
    if name is None:
        name, by, _ = chosen(click.get_current_context().find_root().params["context_name"])
    facts = _facts(read(), name)
    facts.setdefault("nameserver", default_name_servers(os.environ).addresses or LOCAL)
    facts["chosen_by"] = by or None
    if as_json:
        show_json(facts)
    for field, value in facts.items() if not as_json else ():
        text = ("yes" if value else "no") if isinstance(value, bool) else value or ""
        say(f"{field.replace('_', ' '):<16} {text}".rstrip())


@app.command()
def remove(name: Name, as_json: Json = False) -> None:
    """Remove a context. The files that it names stay; if it was in use, the default is used from now on.

    Example: halfmoon context remove prod
    """

    def take(known: Contexts) -> None:
        known.named(name)
        known.contexts.pop(name, None)
        known.in_use = DEFAULT if known.in_use == name else known.in_use

    found = change(take)
    _answer(found, found.in_use, f"context {name} is removed; {found.in_use} is in use", as_json=as_json)


def _answer(known: Contexts, name: str, text: str, *, as_json: bool) -> None:
    if as_json:
        show_json(_facts(known, name))
    else:
        say(text)


def _facts(known: Contexts, name: str) -> dict[str, Any]:
    context = known.named(name)
    return {"context": name, "in_use": known.in_use == name, **({} if context is None else msgspec.to_builtins(context))}


def _cells(known: Contexts, name: str) -> list[str]:
    mark, context = "*" if known.in_use == name else "", known.named(name)
    if context is None:
        return [mark, name, f"{', '.join(NAMESERVER_VARIABLES)}, else {LOCAL}", "", ""]
    return [mark, name, context.nameserver, context.credentials, "yes" if any(context.encryption) else ""]


def _absolute(path: str | None) -> str:
    return str(Path(path).expanduser().absolute()) if path else ""
