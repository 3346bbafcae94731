"""Declarations as plain values: publishers, consumers, their channels and events. The same for code, TOML and XML.

Each value checks itself when it is made and knows its place, a file and line or a path inside a file, which does not count when two
are compared. Reads no file and makes nothing that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from halfmoon.events.consuming.on import DIRECT, EVERY
from halfmoon.events.errors import DeclarationRefused, NameRefused
from halfmoon.events.event import check_code, check_name

BINDING = "msg_broker"
"""The one binding: the broker behind the client."""

DECLARED_MAX = 10_000
"""Publishers, consumers, channels of one, and events of one channel: each at most so many."""

IN_CODE = "declared in code"


@dataclass(frozen=True, kw_only=True)
class EventDeclaration:
    """An event that a consumer wants. Code ``*``: every event of the topic that the group does not name otherwise.

    ``persistence`` False: the group may lose events that are published while it has no member.
    """

    code: str
    type: str = DIRECT
    persistence: bool = True
    place: str = field(default=IN_CODE, compare=False)

    def __post_init__(self) -> None:
        if self.code != EVERY:
            _name(check_code, self.place, self.code)
        if self.type != DIRECT:
            raise DeclarationRefused(self.place, f"event type {self.type!r:.60} of {self.code} is unknown", f"write {DIRECT!r}")
        _is(self.place, f"persistence of {self.code}", self.persistence, bool)


@dataclass(frozen=True, kw_only=True)
class ChannelDeclaration:
    """A topic of which a consumer wants some events."""

    topic: str
    events: tuple[EventDeclaration, ...]
    place: str = field(default=IN_CODE, compare=False)

    def __post_init__(self) -> None:
        _name(lambda name: check_name("topic", name), self.place, self.topic)
        if not self.events:
            raise DeclarationRefused(self.place, f"channel {self.topic} names no event", "name at least one event code")
        _unique("event code", ((event.code, event.place) for event in self.events))


@dataclass(frozen=True, kw_only=True)
class PublisherDeclaration:
    """A publisher: a producer group, the topics of its channels, and who answers checks.

    ``tx_callback`` names the check of all its topics in the table of classes; empty: token rows, or a check that the code adds.
    ``settings`` are keyword arguments of `halfmoon.events.Publisher` with plain values.
    """

    id: str
    group: str
    topics: tuple[str, ...]
    tx_callback: str = ""
    binding: str = BINDING
    settings: Mapping[str, object] = field(default_factory=dict, hash=False)
    place: str = field(default=IN_CODE, compare=False)

    def __post_init__(self) -> None:
        _common(self.place, "publisher", self.id, self.group, self.binding)
        if not self.topics:
            raise DeclarationRefused(self.place, f"publisher {self.id} has no topic", "name at least one")
        for topic in self.topics:
            _name(lambda name: check_name("topic", name), self.place, topic)
        _unique("topic", ((topic, self.place) for topic in self.topics))


@dataclass(frozen=True, kw_only=True)
class ConsumerDeclaration:
    """A consumer: a group, its one listener (a name in the table of classes), and the channels whose events it gets.

    ``settings`` are those of `halfmoon.client.settings.PushSettings`, with plain values.
    """

    id: str
    group: str
    listener: str
    channels: tuple[ChannelDeclaration, ...]
    binding: str = BINDING
    settings: Mapping[str, object] = field(default_factory=dict, hash=False)
    place: str = field(default=IN_CODE, compare=False)

    def __post_init__(self) -> None:
        _common(self.place, "consumer", self.id, self.group, self.binding)
        if not isinstance(self.listener, str) or not self.listener:
            raise DeclarationRefused(self.place, f"consumer {self.id} has no listener", "name one of the table of classes")
        if not self.channels:
            raise DeclarationRefused(self.place, f"consumer {self.id} has no channel", "name at least one topic")
        _unique("channel", ((channel.topic, channel.place) for channel in self.channels))


@dataclass(frozen=True, kw_only=True)
class Declarations:
    """All that one or several files declare. Ids are unique; an event of a group has one listener."""

    publishers: tuple[PublisherDeclaration, ...] = ()
    consumers: tuple[ConsumerDeclaration, ...] = ()

    def __post_init__(self) -> None:
        _unique(
            "id",
            [(publisher.id, publisher.place) for publisher in self.publishers]
            + [(consumer.id, consumer.place) for consumer in self.consumers],
        )
        _unique(
            "event of a group",
            (
                (f"{consumer.group}: {channel.topic}/{event.code}", event.place)
                for consumer in self.consumers
                for channel in consumer.channels
                for event in channel.events
            ),
        )

    def __add__(self, other: Declarations) -> Declarations:
        return Declarations(publishers=self.publishers + other.publishers, consumers=self.consumers + other.consumers)


def nearest(name: str, known: Iterable[str], *, kind: str = "") -> str:
    """Return a remedy for a name that is none of those known: the nearest one, or all of them."""
    by_lower = {name.lower(): name for name in known}
    if near := get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6):
        return f"did you mean {by_lower[near[0]]!r}?"
    return f"known here: {', '.join(sorted(by_lower.values()))}" if by_lower else f"take it out: no {kind or 'name'} belongs here"


def _common(place: str, kind: str, name: str, group: str, binding: str) -> None:
    if not isinstance(name, str) or not name or len(name) > 255:
        raise DeclarationRefused(place, f"a {kind} has no id", "give it one of 1 to 255 characters")
    _name(lambda value: check_name("group", value), place, group)
    if binding != BINDING:
        raise DeclarationRefused(place, f"binding {binding!r:.60} of {name} is unknown", f"write {BINDING!r}")


def _name(check: Callable[[object], object], place: str, name: object) -> None:
    try:
        check(name)
    except NameRefused as exc:
        what, _, remedy = str(exc).partition(": ")
        raise DeclarationRefused(place, what, remedy) from None


def _is(place: str, what: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise DeclarationRefused(place, f"{what} is {value!r:.60}", f"write a {kind.__name__}")


def _unique(what: str, named: Iterable[tuple[str, str]]) -> None:
    seen: dict[str, str] = {}
    for name, place in named:
        if name in seen:
            raise DeclarationRefused(place, f"{what} {name!r} is declared twice (before: {seen[name]})", "keep one of the two")
        if len(seen) >= DECLARED_MAX:
            raise DeclarationRefused(place, f"more than {DECLARED_MAX} of one kind are declared", "split the service")
        seen[name] = place
