"""AsyncAPI 3.0 document of a program's declarations: its events, their publishers and consumers. Asks no broker.

Follows the AsyncAPI Specification 3.0.0. A topic is a channel, an event of a topic and code is a message of it, a group that
publishes to a topic or consumes it is an operation. Payloads are described by the JSON Schema that pydantic or msgspec gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import msgspec

from halfmoon.errors import UsageError
from halfmoon.events.consuming.on import EVERY, Handler
from halfmoon.events.encoding.codec import JSON
from halfmoon.events.encoding.envelope import CODE, VERSION
from halfmoon.events.publishing.publisher import Publisher
from halfmoon.events.typed import type_of

_REF = "#/components/schemas/"
_NAME = re.compile(r"[^A-Za-z0-9._-]")

Object = dict[str, Any]


def document(
    kinds: Iterable[type], handlers: Iterable[Handler], publishers: Iterable[Publisher], *, title: str, version: str = "1.0.0"
) -> Object:
    """Return the document of classes of events, consumers and publishers, as plain data.

    A class describes its event, and publishers that name no topics publish it. Without a class, the ``payload`` of `on` describes
    an event, and without both its payload is left open. ``version`` is the document's own. Raises UsageError for two types of one
    event, and for a type that no schema can be made of.
    """
    made = _Document()
    handlers = list(handlers)
    for kind in kinds:
        if (declared := type_of(kind)) is not None:
            made.event(declared.topic, declared.code, kind, declared.version)
    described = set(made.payloads)
    for handler in handlers:
        declared = type_of(handler.payload)
        known = (handler.topic, handler.code) in described and declared is None
        made.event(handler.topic, handler.code, None if known else handler.payload, declared.version if declared else 1)
    for publisher in publishers:
        for topic in sorted({topic for topic, _ in described} if publisher.topics is None else publisher.topics):
            made.operation("send", publisher.group, topic, {EVERY})
    codes_of: dict[tuple[str, str], set[str]] = {}
    for handler in handlers:
        codes_of.setdefault((handler.group, handler.topic), set()).add(handler.code)
    for (group, topic), codes in sorted(codes_of.items()):
        made.operation("receive", group, topic, codes)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": version},
        "channels": made.channels,
        "operations": made.operations,
        "components": {"messages": made.messages, "schemas": made.schemas},
    }


class _Document:
    """The parts of a document."""

    def __init__(self) -> None:
        self.channels: dict[str, Object] = {}
        self.operations: dict[str, Object] = {}
        self.messages: dict[str, Object] = {}
        self.schemas: dict[str, Object] = {}
        self.payloads: dict[tuple[str, str], Any] = {}

    def event(self, topic: str, code: str, payload: Any, version: int) -> None:
        """Add an event and its channel. Raises UsageError where it is described differently already."""
        channel = self._channel(topic)
        if code == EVERY:
            return
        known = self.payloads.get((topic, code))
        if (topic, code) in self.payloads and payload in (None, known):
            return
        if known is not None:
            raise UsageError(f"{topic}/{code} has two types, {_name(known)} and {_name(payload)}: describe one event by one class")
        self.payloads[topic, code] = payload
        key, headers = _key(f"{topic}.{code}"), {CODE: code, **({VERSION: str(version)} if type_of(payload) else {})}
        self.messages[key] = {
            "name": f"{topic}/{code}",
            **({"title": payload.__name__} if isinstance(payload, type) else {}),
            "headers": {"type": "object", "properties": {name: {"const": value} for name, value in headers.items()}},
            **({} if payload is None else {"contentType": JSON, "payload": self._schema(payload, key)}),
        }
        channel["messages"][_key(code)] = {"$ref": f"#/components/messages/{key}"}

    def operation(self, action: str, group: str, topic: str, codes: set[str]) -> None:
        """Add what a group does with the events of a topic: all of them where the codes hold ``*``."""
        self._channel(topic)
        place = f"#/channels/{_key(topic)}"
        which = {} if EVERY in codes else {"messages": [{"$ref": f"{place}/messages/{_key(code)}"} for code in sorted(codes)]}
        made = {"action": action, "channel": {"$ref": place}, "summary": f"group {group}", **which}
        self.operations[_key(f"{group}.{action}.{topic}")] = made

    def _channel(self, topic: str) -> Object:
        return self.channels.setdefault(_key(topic), {"address": topic, "messages": {}})

    def _schema(self, payload: Any, key: str) -> Object:
        """Return the schema of a type; what it refers to is added under its own name, or behind the message's where two differ."""
        for prefix in ("", f"{key}."):
            schema, parts = _schema_of(payload, f"{_REF}{prefix}")
            named = {f"{prefix}{name}": part for name, part in parts.items()}
            if all(self.schemas.get(name, part) == part for name, part in named.items()):
                break
        self.schemas |= named
        return schema


def _schema_of(payload: Any, ref: str) -> tuple[Object, dict[str, Object]]:
    """Return the JSON Schema of a type of payloads, and the schemas that it refers to at ``ref`` and their names."""
    parts: dict[str, Object] = {}

    def by_pydantic(kind: Any) -> Object:
        if not hasattr(kind, "__pydantic_validator__"):
            raise NotImplementedError(f"{_name(kind)} has no schema")
        made: Object = import_module("pydantic").TypeAdapter(kind).json_schema(ref_template=f"{ref}{{model}}")
        parts.update(made.pop("$defs", {}))
        return made

    try:
        if hasattr(payload, "__pydantic_validator__"):
            made = by_pydantic(payload)
            if "$ref" not in made:  # as one that refers to itself is
                parts[name := _key(payload.__name__)] = made
                made = {"$ref": f"{ref}{name}"}
            return made, parts
        (schema,), components = msgspec.json.schema_components([payload], schema_hook=by_pydantic, ref_template=f"{ref}{{name}}")
    except Exception as exc:  # whatever a library says of a type that it does not know
        raise UsageError(f"no JSON Schema can be made of {_name(payload)}: {exc}") from exc
    return schema, {**components, **parts}


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)


def _key(name: str) -> str:
    """Return a name as components of a document have it: others than letters, digits, ``.``, ``_`` and ``-`` as their numbers."""
    return _NAME.sub(lambda found: f"-{ord(found[0]):x}-", name)
