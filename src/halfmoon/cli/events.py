"""`halfmoon events`: run the consumers of modules or of declarations, and see what these declare."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from halfmoon import Admin
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Json, NameServer
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.events.consuming.consumers import CLOSE_WAIT_MS, Consumers
from halfmoon.events.consuming.on import Handler, handlers_of
from halfmoon.events.consuming.running import module_named, run
from halfmoon.events.declarations import Declared
from halfmoon.events.declarations import declared as made_of
from halfmoon.events.declarations.files import read
from halfmoon.events.publisher import Publisher
from halfmoon.logs import to_stderr

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Run event consumers, and list what is declared.\n\nExample: halfmoon events run shop.consumers -n 127.0.0.1:9876",
)

LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
FILES = (".toml", ".xml")

Modules = Annotated[
    list[str],
    typer.Argument(
        metavar="MODULE...",
        help="Modules with @on functions, such as shop.consumers (the current directory is searched too), or declaration files "
        "(.toml, .xml).",
    ),
]
Groups = Annotated[
    list[str] | None, typer.Option("--group", "-g", metavar="GROUP", help="Only this consumer group; may be repeated.")
]


class Found(NamedTuple):
    """What modules and files declare. ``settings`` are those of consumer groups."""

    publishers: list[Publisher]
    handlers: list[Handler]
    settings: dict[str, dict[str, Any]]


@app.command(name="run")
def run_consumers(
    modules: Modules,
    groups: Groups = None,
    threads: Annotated[
        int, typer.Option("--threads", min=1, max=1_000, help="Plain (not async) handlers that run in parallel, per group.")
    ] = 20,
    close_wait_ms: Annotated[
        int, typer.Option("--close-wait-ms", min=0, max=3_600_000, help="How long a stop waits for running handlers.")
    ] = CLOSE_WAIT_MS,
    create_tables: Annotated[
        bool, typer.Option("--create-tables", help="Create the table of processed events that dedup needs, if it is missing.")
    ] = False,
    log: Annotated[
        str, typer.Option("--log", metavar="LEVEL", help="Log level (stderr): error, warning, info or debug.")
    ] = "warning",
    nameserver: NameServer = "",
    as_json: Json = False,
) -> None:
    """Run consumers until SIGTERM or Ctrl-C; handlers that are running finish first. A second signal stops at once.

    Prints one line once every group is registered. Publishers declared in the same modules answer transaction checks meanwhile.

    Example: halfmoon events run shop.consumers --nameserver 127.0.0.1:9876
    """
    if log not in LEVELS:
        raise UsageError(f"--log {log}: must be one of {', '.join(LEVELS)}")
    to_stderr(LEVELS[log])
    found = declared(modules, nameserver)
    handlers = _of_groups(found.handlers, groups, modules)
    known = {one.group for one in handlers}
    settings = {group: values for group, values in found.settings.items() if group in known}
    options: dict[str, Any] = {"threads": threads, "close_wait_ms": close_wait_ms, "groups": settings}
    options["nameserver"] = nameserver or LOCAL
    if create_tables:
        Consumers(handlers, **options).create_tables()
    for one in sorted({str(settings.get(group, {}).get("nameserver") or options["nameserver"]) for group in known}):
        _warn_of_silence(one)
    for publisher in found.publishers:
        publisher.start()
    try:
        left = run(handlers, ready=lambda consumers: _say_ready(consumers, as_json=as_json), **options)
    finally:
        for publisher in found.publishers:
            publisher.close()
    if left:
        say(f"halfmoon events: {left} functions did not end in time; their events are delivered again", error=True)
        os._exit(1)  # their threads would keep the process


def _warn_of_silence(nameserver: str) -> None:
    """Say so when no name server answers: consumers wait for one without a word."""
    try:
        with Admin(nameserver=nameserver, request_timeout_ms=1_000) as admin:
            admin.cluster()
    except HalfmoonError as exc:
        say(f"halfmoon events: {exc}; it is tried again, and consuming begins when one answers", error=True)


@app.command(name="list")
def list_declared(modules: Modules, as_json: Json = False) -> None:
    """List the publishers and consumers that modules or files declare.

    Example: halfmoon events list shop.consumers
    """
    found = declared(modules)
    publishers = [_publisher_facts(one) for one in found.publishers]
    consumers = [_consumer_facts(one) for one in sorted(found.handlers, key=lambda one: (one.group, one.topic, one.code))]
    if as_json:
        show_json({"publishers": publishers, "consumers": consumers})
        return
    if publishers:
        rows = [(one["group"], ", ".join(one["topics"] or ["any"]), one["database"] or "-") for one in publishers]
        show_table("Publishers", ("group", "topics", "database"), rows)
    rows_of = [[one["group"], one["topic"], one["code"], one["function"], ", ".join(_remarks(one)) or "-"] for one in consumers]
    show_table("Consumers", ("group", "topic", "code", "function", "remarks"), rows_of)


def declared(names: list[str], nameserver: str = "") -> Found:
    """Return what modules and files declare, the current directory being importable.

    ``nameserver`` goes before what the files say. Raises UsageError, ModuleRefused.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    files = [one for one in names if one.endswith(FILES)]
    modules = [module_named(one) for one in names if not one.endswith(FILES)]
    publishers = {id(one): one for module in modules for one in vars(module).values() if isinstance(one, Publisher)}
    found = _in_files(files, nameserver) if files else None
    return Found(
        [*publishers.values(), *(found.publishers.values() if found else ())],
        handlers_of([*modules, *(found.consumers if found else ())]),  # a list: nothing is not everything
        found.consumer_settings if found else {},
    )


def _in_files(files: list[str], nameserver: str) -> Declared:
    """Return what files declare. Where neither they nor the command name a name server, publishers take the default, too."""
    found = read(*files)
    publishers = tuple(replace(one, settings={"nameserver": LOCAL, **one.settings}) for one in found.declarations.publishers)
    said = {"nameserver": nameserver} if nameserver else {}
    return made_of(replace(found.declarations, publishers=publishers), classes=found.classes, **said)


def _of_groups(handlers: list[Handler], groups: list[str] | None, modules: list[str]) -> list[Handler]:
    if not handlers:
        raise UsageError(f"{', '.join(modules)}: no consumer is declared there; decorate functions with @on(group, topic, code)")
    known = sorted({one.group for one in handlers})
    if unknown := sorted(set(groups or ()) - set(known)):
        raise UsageError(f"--group {unknown[0]}: nothing is declared for it; there are {', '.join(known)}")
    return [one for one in handlers if not groups or one.group in groups]


def _say_ready(consumers: Consumers, *, as_json: bool) -> None:
    count = len(consumers.handlers)
    if as_json:
        show_json({"ready": True, "pid": os.getpid(), "groups": consumers.groups, "consumers": count})
    else:
        say(f"halfmoon ready: {count} consumers in groups {', '.join(consumers.groups)}")


def _publisher_facts(one: Publisher) -> dict[str, Any]:
    topics = None if one.topics is None else sorted(one.topics)
    return {"group": one.group, "topics": topics, "database": getattr(one.provider, "dialect", "")}


def _consumer_facts(one: Handler) -> dict[str, Any]:
    facts = {"group": one.group, "topic": one.topic, "code": one.code, "function": one.name, "event_type": one.event_type}
    return {**facts, "persistence": one.persistence, "dedup": one.dedup is not None, "async": one.is_async}


def _remarks(facts: dict[str, Any]) -> list[str]:
    remarks = {"async": facts["async"], "dedup": facts["dedup"], "not kept while offline": not facts["persistence"]}
    return [text for text, said in remarks.items() if said]
