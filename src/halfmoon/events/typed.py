"""Typed events: a class whose objects are events, with the topic and code that it says. Declares and looks up; sends nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from halfmoon.errors import UsageError
from halfmoon.events.encoding.codec import VERSION_MAX
from halfmoon.events.errors import PayloadRefused
from halfmoon.events.event import check_code, check_name, check_whole
from halfmoon.logs import listed

Payload = TypeVar("Payload")

_MARK = "__halfmoon_event__"


class EventType(msgspec.Struct, frozen=True):
    """Event that a class declares. ``key`` is the attribute that holds an event's key; empty for none."""

    topic: str
    code: str
    version: int
    key: str

    def key_of(self, payload: object) -> str:
        """Return the key of an event; empty where the attribute is None. Raises PayloadRefused where there is none."""
        if self.key and not hasattr(payload, self.key):
            raise PayloadRefused(f"{type(payload).__qualname__} has no attribute {self.key!r:.80} to be its key")
        key = getattr(payload, self.key) if self.key else None
        return "" if key is None else str(key)


def event(topic: str, code: str, *, key: str = "", version: int = 1) -> Callable[[type[Payload]], type[Payload]]:
    """Have the objects of a class be events of a topic and code; a decorator.

    ::

        @event("TP_ORDER", "EC_PAID", key="order_id")
        class OrderPaid(BaseModel):
            order_id: int

        events.publish(OrderPaid(order_id=42))

        @on(OrderPaid, group="S_mail")
        def send_mail(paid: OrderPaid): ...

    The class is a pydantic model, a msgspec Struct or a dataclass; put this above ``@dataclass``. ``key`` names the attribute whose
    text is the event's key. ``version`` is that of the payload's form: consumers of the class take it, and older ones with
    `Codecs.upcast`. A class that descends from it is another type of event, and needs a decorator of its own. Raises NameRefused
    and UsageError.
    """
    if not isinstance(key, str) or (key and not key.isidentifier()):
        raise UsageError(f"key={key!r:.80}: name the attribute that holds the key of an event")
    declared = EventType(check_name("topic", topic), check_code(code), check_whole("version", version, 1, VERSION_MAX), key)

    def mark(kind: type[Payload]) -> type[Payload]:
        known = is_dataclass(kind) or hasattr(kind, "__pydantic_validator__") or hasattr(kind, "__struct_fields__")
        if not isinstance(kind, type) or not known:
            raise UsageError(f"@event decorates pydantic models, msgspec Structs and dataclasses, not {kind!r:.80}")
        if key and not _has(kind, key):
            raise UsageError(f"@event(key={key!r:.80}): {kind.__qualname__} has no such field{_meant(kind, key)}")
        setattr(kind, _MARK, declared)
        return kind

    return mark


def _has(kind: type[Any], name: str) -> bool:
    """Return whether objects of a class have an attribute: a field, a property, or any where a model takes further ones."""
    takes_all = getattr(kind, "model_config", {}).get("extra") == "allow"
    return takes_all or name in _fields(kind) or hasattr(kind, name)


def _fields(kind: type[Any]) -> list[str]:
    of_library = ("__dataclass_fields__", "__struct_fields__", "model_fields", "__private_attributes__")
    return [name for fields in of_library for name in getattr(kind, fields, ())]


def _meant(kind: type[Any], name: str) -> str:
    near = get_close_matches(name, _fields(kind), 1)
    return f"; did you mean {near[0]!r}?" if near else f": it has {listed(_fields(kind), 10)}"


def type_of(kind: object) -> EventType | None:
    """Return what a class itself, and no ancestor of it, was declared as; None for anything else."""
    found: EventType | None = vars(kind).get(_MARK) if isinstance(kind, type) else None
    return found


def required_type_of(kind: type[Any]) -> EventType:
    """Return the event of a class as `type_of` does. Raises UsageError for a class that is no event."""
    if (found := type_of(kind)) is None:
        raise UsageError(
            f"{kind.__module__}.{kind.__qualname__} is no event: decorate the class with @event(topic, code), "
            "or build one with events.event(topic, code, payload)"
        )
    return found
