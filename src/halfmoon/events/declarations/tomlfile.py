"""Declarations in TOML: tables ``publishers`` and ``consumers`` by id, and the table of ``classes``.

::

    nameserver = "127.0.0.1:9876"              # of all that name none; a call's own wins

    [classes]                                  # names, Java classes too, and the Python objects behind them
    mail = "shop.mail:MailListener"
    "com.shop.PaidCheck" = "shop.orders:paid"

    [publishers.orders]
    group = "P_shop"
    topics = ["TP_ORDER"]
    tx_callback = "com.shop.PaidCheck"
    timeout_ms = 2000                          # any plain setting of a Publisher

    [consumers.mail]
    group = "S_mail"
    listener = "mail"
    threads = 4                                # any plain setting of PushSettings

    [consumers.mail.channels]
    TP_ORDER = ["EC_PAID", "EC_SENT"]          # or a table: EC_PAID = { persistence = false }
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, NamedTuple

from halfmoon import PushSettings, TransactionSettings
from halfmoon.events.declarations.declaration import (
    ChannelDeclaration,
    ConsumerDeclaration,
    Declarations,
    EventDeclaration,
    PublisherDeclaration,
    nearest,
)
from halfmoon.events.errors import DeclarationRefused
from halfmoon.events.publishing.publisher import Publisher

Table = dict[str, Any]

_TOP: dict[str, type] = {"nameserver": str, "classes": dict, "publishers": dict, "consumers": dict}
_COMMON: dict[str, type] = {"group": str, "binding": str}
_PUBLISHER: dict[str, type] = {**_COMMON, "topics": list, "tx_callback": str}
_CONSUMER: dict[str, type] = {**_COMMON, "listener": str, "channels": dict}
_EVENT: dict[str, type] = {"type": str, "persistence": bool}
_NOT_PLAIN = frozenset(("self", "settings", "session", "bind", "provider", "codecs", "transport", *_PUBLISHER))
_LINE = re.compile(r"^(.*) \(at (?:line (\d+), column \d+|end of document)\)$", re.DOTALL)
_WORDS = {str: "a text", dict: "a table", list: "a list of texts", bool: "true or false", int: "a whole number", float: "a number"}


def plain_settings(kind: str) -> dict[str, type]:
    """Return the settings of a ``publisher`` or ``consumer`` that a file can give, and the type of each."""
    if kind == "consumer":
        return {
            field.name: type(field.default)
            for field in fields(PushSettings)
            if type(field.default) in _WORDS and field.name != "group"
        }
    client = {field.name: type(field.default) for field in fields(TransactionSettings) if type(field.default) in _WORDS}
    own = {name: _plain(parameter) for name, parameter in inspect.signature(Publisher.__init__).parameters.items()}
    return {name: of for name, of in (client | own).items() if name not in _NOT_PLAIN}


class DeclarationFiles(NamedTuple):
    """Content of declaration files: the declarations, and names with the Python paths behind them."""

    declarations: Declarations
    classes: dict[str, str]


def read_toml(text: bytes, name: str) -> DeclarationFiles:
    """Return the content of a file; errors call it ``name``.

    Raises DeclarationRefused, which names the file and the line, or the path inside it.
    """
    table = _parsed(text, name)
    _check(f"{name}", table, _TOP)
    shared = {"nameserver": table["nameserver"]} if "nameserver" in table else {}
    publishers = tuple(
        _publisher(f"{name}: publishers.{key}", key, entry, shared) for key, entry in table.get("publishers", {}).items()
    )
    consumers = tuple(
        _consumer(f"{name}: consumers.{key}", key, entry, shared) for key, entry in table.get("consumers", {}).items()
    )
    classes = table.get("classes", {})
    _check(f"{name}: classes", classes, dict.fromkeys(classes, str))
    return DeclarationFiles(Declarations(publishers=publishers, consumers=consumers), classes)


# ---------------------------------------------------------------- tables to values


def _publisher(place: str, name: str, table: object, shared: Table) -> PublisherDeclaration:
    own, settings = _fields(place, table, _PUBLISHER, "publisher", shared, required=("group", "topics"))
    own["topics"] = tuple(_texts(f"{place}.topics", own["topics"]))
    return PublisherDeclaration(id=name, settings=settings, place=place, **own)


def _consumer(place: str, name: str, table: object, shared: Table) -> ConsumerDeclaration:
    own, settings = _fields(place, table, _CONSUMER, "consumer", shared, required=("group", "listener", "channels"))
    own["channels"] = tuple(
        ChannelDeclaration(topic=topic, events=tuple(_events(at := f"{place}.channels.{topic}", events)), place=at)
        for topic, events in own["channels"].items()
    )
    return ConsumerDeclaration(id=name, settings=settings, place=place, **own)


def _events(place: str, events: object) -> Iterable[EventDeclaration]:
    if isinstance(events, list):
        yield from (EventDeclaration(code=code, place=place) for code in _texts(place, events))
        return
    if not isinstance(events, dict):
        raise DeclarationRefused(place, f"{events!r:.60} is no channel", 'write a list of event codes, such as ["EC_PAID"]')
    for code, options in events.items():
        at = f"{place}.{code}"
        yield EventDeclaration(code=code, place=at, **_check(at, options, _EVENT))


def _fields(
    place: str, table: object, known: dict[str, type], kind: str, shared: Table, *, required: tuple[str, ...]
) -> tuple[Table, Table]:
    """Return the fields of a declaration, and its settings with those that the file gives to all. Raises DeclarationRefused."""
    given = _check(place, table, {**known, **plain_settings(kind)}, required=required)
    own = {key: value for key, value in given.items() if key in known}
    return own, shared | {key: value for key, value in given.items() if key not in known}


def _check(place: str, table: object, known: dict[str, type], *, required: tuple[str, ...] = ()) -> Table:
    """Return the table if its keys are known and its values of their types. Raises DeclarationRefused."""
    if not isinstance(table, dict):
        raise DeclarationRefused(place, f"{table!r:.60} is no table", "write a table: [name] or { key = value }")
    for key, value in table.items():
        if key not in known:
            raise DeclarationRefused(place, f"unknown key {key!r:.60}", nearest(key, known))
        kind = known[key]
        fits = isinstance(value, (int, float) if kind is float else kind) and (kind is bool) is isinstance(value, bool)
        if not fits:
            raise DeclarationRefused(f"{place}.{key}", f"{value!r:.60} does not fit", f"write {_WORDS[kind]}")
    for key in required:
        if key not in table:
            raise DeclarationRefused(place, f"{key} is missing", f"add {key} = {'[…]' if known[key] is list else '…'}")
    return table


def _texts(place: str, values: list[object]) -> list[str]:
    if wrong := [value for value in values if not isinstance(value, str)]:
        raise DeclarationRefused(place, f"{wrong[0]!r:.60} is no text", "write a list of texts")
    return [value for value in values if isinstance(value, str)]


def _plain(parameter: inspect.Parameter) -> type:
    """Return the type of a parameter that is a text, number or switch; ``None`` by default means such a one may be given."""
    text = str(parameter.annotation).partition(" |")[0]
    return {"str": str, "bool": bool, "int": int, "float": float}.get(text, object)


# ---------------------------------------------------------------- text to tables


def _parsed(text: bytes, name: str) -> Table:
    try:
        return tomllib.loads(text.decode())
    except UnicodeDecodeError as exc:
        raise DeclarationRefused(f"{name}:{text.count(10, 0, exc.start) + 1}", "not UTF-8", "save it as UTF-8") from None
    except RecursionError:
        raise DeclarationRefused(name, "lists or tables lie too deep", "a declaration needs four levels") from None
    except ValueError as exc:  # tomllib's own, and of numbers without end
        match = _LINE.match(str(exc))
        line = f":{match[2] or text.count(10) + 1}" if match else ""
        raise DeclarationRefused(f"{name}{line}", f"not TOML: {match[1] if match else exc}", "mend the TOML there") from None
