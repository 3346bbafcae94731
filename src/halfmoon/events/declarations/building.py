"""Construction of publishers and consumers from declarations. Starts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halfmoon.errors import UsageError
from halfmoon.events.consuming.on import ON_EVENT, Handler
from halfmoon.events.declarations.classes import ClassTable
from halfmoon.events.declarations.declaration import ConsumerDeclaration, Declarations, PublisherDeclaration
from halfmoon.events.declarations.files import read
from halfmoon.events.errors import DeclarationRefused
from halfmoon.events.publishing.publisher import Publisher

_DEFAULTS = {"default": "plain"}
"""Settings of declared publishers where neither the files nor the call say otherwise: MsgBroker's events are plain by default."""

CHECK = "check"
"""The method of a ``tx-callback`` that is no function."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Publishers and consumers made from declarations.

    ``publishers`` are by id; ``consumers`` are the handlers that `halfmoon.events.Consumers` takes, and ``consumer_settings`` their
    settings by group: the ``groups`` of `Consumers` and `run`.
    """

    publishers: dict[str, Publisher] = field(default_factory=dict)
    consumers: list[Handler] = field(default_factory=list)
    consumer_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    declarations: Declarations = field(default_factory=Declarations)


def load(*paths: str | Path, classes: Mapping[str, object] | None = None, dedup: Any = None, **settings: Any) -> Declared:
    """Return the publishers and consumers that TOML and XML files declare.

    ::

        shop = load("events.toml", session=Session, nameserver="127.0.0.1:9876")
        shop.publishers["orders"].publish("TP_ORDER", "EC_PAID", {"order_id": 42})
        run(*shop.consumers, groups=shop.consumer_settings)

    ``classes`` are names of listeners and checks with the import paths or objects behind them, added to the ``[classes]`` of the
    TOML files and before them; nothing else is imported. ``dedup`` goes to every consumer, as `halfmoon.events.on` takes it.
    ``settings`` are those of `Publisher` (``session``, ``nameserver``, ``transport``, …) and go before what the files say.

    Raises DeclarationRefused, which names the file, the line or the path inside it, and the remedy.
    """
    files = read(*paths)
    return declared(files.declarations, classes={**files.classes, **(classes or {})}, dedup=dedup, **settings)


def declared(declarations: Declarations, *, classes: Mapping[str, object], dedup: Any = None, **settings: Any) -> Declared:
    """Return the publishers and consumers of declarations that were made in code. Arguments and errors are those of `load`."""
    table = ClassTable(classes)
    consumers = [handler for declaration in declarations.consumers for handler in _handlers(declaration, table, dedup)]
    return Declared(
        publishers={declaration.id: _publisher(declaration, table, settings) for declaration in declarations.publishers},
        consumers=consumers,
        consumer_settings=_consumer_settings(declarations, settings),
        declarations=declarations,
    )


def _publisher(declaration: PublisherDeclaration, table: ClassTable, settings: Mapping[str, Any]) -> Publisher:
    check = table.function(declaration.tx_callback, declaration.place, method=CHECK) if declaration.tx_callback else None
    try:
        publisher = Publisher(declaration.group, topics=declaration.topics, **{**_DEFAULTS, **declaration.settings, **settings})
    except (UsageError, TypeError) as exc:
        raise DeclarationRefused(declaration.place, f"publisher {declaration.id}: {exc}", "mend the setting") from exc
    if check is not None:
        publisher.check()(check)
    return publisher


def _handlers(declaration: ConsumerDeclaration, table: ClassTable, dedup: Any) -> list[Handler]:
    function = table.function(declaration.listener, declaration.place, method=ON_EVENT)
    return [
        Handler(
            group=declaration.group,
            topic=channel.topic,
            code=event.code,
            function=function,
            persistence=event.persistence,
            event_type=event.type,
            dedup=dedup,
        )
        for channel in declaration.channels
        for event in channel.events
    ]


def _consumer_settings(declarations: Declarations, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return settings by group; a name server that the call gives is theirs, too.

    Raises DeclarationRefused where two consumers of a group, which share a client, differ.
    """
    by_group: dict[str, dict[str, Any]] = {}
    for declaration in declarations.consumers:
        settings = by_group.setdefault(declaration.group, dict(declaration.settings))
        if settings != declaration.settings:
            what = f"consumer {declaration.id} sets otherwise than another one of group {declaration.group}"
            raise DeclarationRefused(declaration.place, what, "set the same: a group has one client in a process")
    if nameserver := given.get("nameserver"):
        return {group: {**settings, "nameserver": nameserver} for group, settings in by_group.items()}
    return by_group
