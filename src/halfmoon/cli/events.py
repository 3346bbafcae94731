"""`halfmoon events`: runs the consumers of modules or declaration files, lists the declarations, and describes the events."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import click
import yaml

from halfmoon import Admin
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Groups, Json, NameServer, duration_ms
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.events.consuming.consumers import CLOSE_WAIT_MS, Consumers
from halfmoon.events.consuming.on import Handler, handlers_of
from halfmoon.events.consuming.reload import keep_running
from halfmoon.events.consuming.running import module_named, run
from halfmoon.events.declarations import Declared
from halfmoon.events.declarations import declared as made_of
from halfmoon.events.declarations.asyncapi import document
from halfmoon.events.declarations.files import read
from halfmoon.events.publishing.publisher import Publisher
from halfmoon.events.typed import type_of
from halfmoon.logs import to_stderr

app = App(
    help="Run event consumers, and list what is declared.\n\nExample: halfmoon events run shop.consumers -n 127.0.0.1:9876",
)

LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
FILES = (".toml", ".xml")
STOP_MORE_S = 10
"""Seconds that a process has to end before a restart, in addition to the time for its running handlers."""

Modules = Annotated[
    list[str],
    Argument(
        metavar="MODULE...",
        help="Modules with @on functions, such as shop.consumers (the current directory is searched too), or declaration files "
        "(.toml, .xml).",
    ),
]
Threads = Annotated[int, Option("--threads", min=1, max=1_000, help="Plain (not async) handlers that run in parallel, per group.")]
CloseWait = Annotated[str, Option("--close-wait", metavar="DURATION", help="How long a stop waits for running handlers: up to 1h.")]
CreateTables = Annotated[
    bool, Option("--create-tables", help="Create the table of processed events that dedup needs, if it is missing.")
]
Reload = Annotated[bool, Option("--reload", help="For development: start again when a source file here or below changes.")]
Log = Annotated[str, Option("--log", metavar="LEVEL", help="Log level (stderr): error, warning, info or debug.")]


class LoadedDeclarations(NamedTuple):
    """Declarations of modules and files. ``settings`` are those of consumer groups."""

    publishers: list[Publisher]
    handlers: list[Handler]
    settings: dict[str, dict[str, Any]]


@app.command(name="run")
def run_consumers(
    modules: Modules,
    groups: Groups = None,
    threads: Threads = 20,
    close_wait: CloseWait = f"{CLOSE_WAIT_MS // 1000}s",
    create_tables: CreateTables = False,
    reload: Reload = False,
    log: Log = "warning",
    nameserver: NameServer = "",
    as_json: Json = False,
) -> None:
    """Run consumers until SIGTERM or Ctrl-C; handlers that are running finish first. A second signal stops at once.

    Prints one line once every group is registered at the brokers of its topics. Publishers that these modules make or import are
    started too, and answer checks.

    Example: halfmoon events run shop.consumers --nameserver 127.0.0.1:9876
    """
    if log not in LEVELS:
        raise UsageError(f"--log {log}: must be one of {', '.join(LEVELS)}")
    close_wait_ms = duration_ms(close_wait, "--close-wait", at_most="1h")
    if reload:
        raise click.exceptions.Exit(_run_again(close_wait_ms))
    to_stderr(LEVELS[log])
    declarations = declared(modules, nameserver)
    handlers = _of_groups(declarations.handlers, groups, modules)
    known = {handler.group for handler in handlers}
    settings = {group: values for group, values in declarations.settings.items() if group in known}
    default = nameserver or LOCAL
    options: dict[str, Any] = {"threads": threads, "close_wait_ms": close_wait_ms, "groups": settings, "nameserver": default}
    if create_tables:
        Consumers(handlers, **options).create_tables()
    for address in sorted({str(settings.get(group, {}).get("nameserver") or default) for group in known}):
        _warn_unless_reachable(address)
    for publisher in declarations.publishers:
        publisher.start()
    try:
        unfinished = run(handlers, ready=lambda consumers: _say_ready(consumers, as_json=as_json), **options)
    finally:
        for publisher in declarations.publishers:
            publisher.close()
    if unfinished:
        say(f"halfmoon events: {unfinished} functions did not end in time; their events are delivered again", error=True)
        os._exit(1)  # their threads would keep the process alive


def _run_again(close_wait_ms: int) -> int:
    """Run this command without ``--reload``, anew after each change of a source file."""
    command = [sys.executable, "-m", "halfmoon", *(word for word in sys.argv[1:] if word != "--reload")]
    stop_s = close_wait_ms / 1000 + STOP_MORE_S
    return keep_running(command, Path.cwd(), stop_s=stop_s, say=lambda text: say(f"halfmoon events: {text}", error=True))


def _warn_unless_reachable(nameserver: str) -> None:
    """Print a warning when no name server answers: consumers wait for one silently."""
    try:
        with Admin(nameserver=nameserver, request_timeout_ms=1_000) as admin:
            admin.cluster()
    except UsageError:
        raise  # trying again does not help
    except HalfmoonError as exc:
        say(f"halfmoon events: {exc}; retrying, and consuming begins when one answers", error=True)


@app.command(name="list", finds=True)
def list_declared(modules: Modules, as_json: Json = False) -> int:
    """List the publishers and consumers that modules or files declare.

    Example: halfmoon events list shop.consumers
    """
    declarations = declared(modules)
    publishers = [*map(_publisher_facts, declarations.publishers)]
    consumers = [
        *map(_consumer_facts, sorted(declarations.handlers, key=lambda handler: (handler.group, handler.topic, handler.code)))
    ]
    if as_json:
        show_json({"publishers": publishers, "consumers": consumers})
        return len(publishers) + len(consumers)
    if publishers:
        rows = [(facts["group"], ", ".join(facts["topics"] or ["any"]), facts["database"] or "-") for facts in publishers]
        show_table("Publishers", ("group", "topics", "database"), rows)
    columns = ("group", "topic", "code", "function")
    rows_of = [[*(facts[name] for name in columns), ", ".join(_remarks(facts)) or "-"] for facts in consumers]
    show_table("Consumers", (*columns, "remarks"), rows_of)
    return len(publishers) + len(consumers)


@app.command()
def schema(
    modules: Modules,
    title: Annotated[str, Option("--title", help="Title of the document; without it, the first MODULE.")] = "",
    version: Annotated[str, Option("--version", help="Version of the document.")] = "1.0.0",
    as_json: Json = False,
) -> None:
    """Write an AsyncAPI 3.0 document of the events that modules or files declare: YAML, or JSON with --json.

    Payloads of @event classes and of payload= are described by JSON Schema.

    Example: halfmoon events schema shop.events shop.consumers > asyncapi.yaml
    """
    found = declared(modules)
    imported = [module_named(name) for name in modules if not name.endswith(FILES)]
    kinds = [kind for module in imported for kind in vars(module).values() if type_of(kind)]
    made = document(kinds, found.handlers, found.publishers, title=title or modules[0], version=version)
    if as_json:
        show_json(made)
    else:
        sys.stdout.write(yaml.safe_dump(made, sort_keys=False, allow_unicode=True))


def declared(names: list[str], nameserver: str = "") -> LoadedDeclarations:
    """Return the declarations of modules and files; the current directory is importable.

    ``nameserver`` overrides the one in the files. Raises UsageError, ModuleRefused.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    files = [name for name in names if name.endswith(FILES)]
    modules = [module_named(name) for name in names if not name.endswith(FILES)]
    publishers = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, Publisher)}
    from_files = _in_files(files, nameserver) if files else None
    return LoadedDeclarations(
        [*publishers.values(), *(from_files.publishers.values() if from_files else ())],
        handlers_of([*modules, *(from_files.consumers if from_files else ())]),  # a list, for no argument means every module
        from_files.consumer_settings if from_files else {},
    )


def _in_files(files: list[str], nameserver: str) -> Declared:
    """Return the declarations of files. Publishers without a name server, in a file or by option, take the default."""
    parsed = read(*files)
    publishers = tuple(
        replace(publisher, settings={"nameserver": LOCAL, **publisher.settings}) for publisher in parsed.declarations.publishers
    )
    given = {"nameserver": nameserver} if nameserver else {}
    return made_of(replace(parsed.declarations, publishers=publishers), classes=parsed.classes, **given)


def _of_groups(handlers: list[Handler], groups: list[str] | None, modules: list[str]) -> list[Handler]:
    if not handlers:
        raise UsageError(f"{', '.join(modules)}: no consumer is declared there; decorate functions with @on(group, topic, code)")
    known = sorted({handler.group for handler in handlers})
    if unknown := sorted(set(groups or ()) - set(known)):
        raise UsageError(f"--group {unknown[0]}: no consumer is declared for it; declared groups: {', '.join(known)}")
    return [handler for handler in handlers if not groups or handler.group in groups]


def _say_ready(consumers: Consumers, *, as_json: bool) -> None:
    count, missing = len(consumers.handlers), consumers.missing_topics
    if as_json:
        facts = {"ready": True, "pid": os.getpid(), "groups": consumers.groups, "consumers": count, "missing_topics": missing}
        show_json(facts)
    else:
        consumers_text, groups_text = "consumer" + "s" * (count != 1), "group" + "s" * (len(consumers.groups) != 1)
        waits = f"; topics that do not exist yet: {', '.join(missing)}" if missing else ""
        say(f"halfmoon ready: {count} {consumers_text} in {groups_text} {', '.join(consumers.groups)}{waits}")


def _publisher_facts(publisher: Publisher) -> dict[str, Any]:
    topics = None if publisher.topics is None else sorted(publisher.topics)
    return {"group": publisher.group, "topics": topics, "database": getattr(publisher.provider, "dialect", "")}


def _consumer_facts(handler: Handler) -> dict[str, Any]:
    return {
        "group": handler.group,
        "topic": handler.topic,
        "code": handler.code,
        "function": handler.name,
        "event_type": handler.event_type,
        "persistence": handler.persistence,
        "dedup": handler.dedup is not None,
        "async": handler.is_async,
    }


def _remarks(facts: dict[str, Any]) -> list[str]:
    remarks = {"async": facts["async"], "dedup": facts["dedup"], "not kept while offline": not facts["persistence"]}
    return [text for text, holds in remarks.items() if holds]
