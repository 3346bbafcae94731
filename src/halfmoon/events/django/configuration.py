"""``HALFMOON`` of the project's settings: its keys, the check of their values, and the publisher that they describe.

Opens nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string

from halfmoon.errors import HalfmoonError
from halfmoon.events.django.databases import provider
from halfmoon.events.event import check_name
from halfmoon.events.outbox.relay import RelaySettings
from halfmoon.events.publishing.publisher import Publisher
from halfmoon.model import split_addresses

SETTING = "HALFMOON"
MODES = ("two-phase", "outbox")


class SettingProblem(NamedTuple):
    """Mistake in the settings: its place, the mistake, and the remedy."""

    place: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}; {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class ProjectConfiguration:
    """Values of ``HALFMOON``. The keys are these names in capitals; all but ``GROUP`` and ``NAMESERVER`` have a default.

    ``group`` is the publisher's, ``nameserver`` an address or several joined by ``;``. ``database`` is the alias whose
    transactions count and whose tables are used. ``topics``: those it may publish to; None: any. ``consumers`` are modules with
    `@on` functions, which ``manage.py halfmoon_consume`` runs; ``checks`` are modules with checks written by hand, imported when
    the project starts. ``start``: whether the publisher connects as soon as it is made, which a web process does when it starts,
    so that brokers can ask it, and opens with the first request; else with its first use.
    ``transport``: a `MemoryBus` or its place (``package.module.name``), in place of a name server. ``codecs``: the place of a
    `Codecs`. ``relay``: whether publishing processes send the outbox, too, or the settings with which they and
    ``manage.py halfmoon_relay`` do, by the names of `RelaySettings`. ``settings`` are further ones of the client,
    ``consumer_settings`` those of `Consumers`. The others are those of `Publisher`.
    """

    group: str = ""
    nameserver: str = ""
    mode: str = "two-phase"
    default: str | None = None
    relay: bool | Mapping[str, Any] = True
    database: str = "default"
    topics: Collection[str] | None = None
    consumers: Collection[str] = ()
    checks: Collection[str] = ()
    start: bool = True
    tries_max: int = 2
    timeout_ms: int = 3_000
    check_after_s: int | None = None
    strict: bool = True
    notify: bool = True
    raise_on_failure: bool = True
    transport: Any = None
    codecs: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    consumer_settings: Mapping[str, Any] = field(default_factory=dict)

    def publisher(self, **changes: Any) -> Publisher:
        """Return a new publisher; ``changes`` go before what the settings say. Raises UsageError, ImportError."""
        same = ("topics", "mode", "default", "tries_max", "timeout_ms", "check_after_s", "strict", "notify", "raise_on_failure")
        given: dict[str, Any] = {name: getattr(self, name) for name in same}
        given["relay"] = self.relay_settings() if self.relay else False
        given["lazy"] = not self.start
        given |= {"provider": provider(self.database), "codecs": named(self.codecs), "transport": named(self.transport)}
        return Publisher(self.group, self.nameserver, **{**given, **self.settings, **changes})

    def relay_settings(self, **changes: Any) -> RelaySettings:
        """Return how a relay of the project works; ``changes`` go before what the settings say. Raises SettingError."""
        given = dict(self.relay) if isinstance(self.relay, Mapping) else {}
        return RelaySettings(**{**given, **changes})


def configuration() -> ProjectConfiguration:
    """Return the values of the settings. Raises ImproperlyConfigured, with all mistakes."""
    configured, problems = read(getattr(settings, SETTING, None))
    if problems:
        raise ImproperlyConfigured("\n".join(str(problem) for problem in problems))
    return configured


def read(value: object) -> tuple[ProjectConfiguration, list[SettingProblem]]:
    """Return the values of ``HALFMOON``, as far as they can be read, and its mistakes."""
    if value is None:
        return ProjectConfiguration(), [
            SettingProblem(SETTING, "the settings have none", f'write {SETTING} = {{"GROUP": "P_shop", …}}')
        ]
    if not isinstance(value, Mapping):
        return ProjectConfiguration(), [SettingProblem(SETTING, f"it is a {type(value).__name__}", "write a dict")]
    problems: list[SettingProblem] = []
    configured: dict[str, Any] = {}
    for key, setting in value.items():
        if key not in _KEYS:
            close = get_close_matches(str(key).upper(), _KEYS, 1)
            remedy = f"did you mean {close[0]}?" if close else f"known are {', '.join(_KEYS)}"
            problems.append(SettingProblem(SETTING, f"the key {key!r:.60} is not known", remedy))
        elif problem := _KEYS[key](setting):
            problems.append(SettingProblem(_place(key), *problem))
        else:
            configured[key.lower()] = setting
    if not problems or {"GROUP", "NAMESERVER"} & value.keys():
        problems += _needed(value)
    return ProjectConfiguration(**configured), problems


def named(value: Any) -> Any:
    """Return the object that a text like ``package.module.name`` names, and any other value as it is. Raises ImportError."""
    return import_string(value) if isinstance(value, str) else value


def _needed(given: Mapping[Any, Any]) -> list[SettingProblem]:
    problems = []
    if "GROUP" not in given:
        problems.append(SettingProblem(_place("GROUP"), "it is missing", "name the publisher group, such as P_shop"))
    if given.get("TRANSPORT") is None and "NAMESERVER" not in given:
        problems.append(
            SettingProblem(_place("NAMESERVER"), "it is missing", "give the address of the name server, such as 127.0.0.1:9876")
        )
    if given.get("TRANSPORT") is not None and given.get("NAMESERVER"):
        problems.append(SettingProblem(_place("TRANSPORT"), "there is a NAMESERVER, too", "leave one of both out"))
    return problems


def _place(key: str) -> str:
    return f'{SETTING}["{key}"]'


# ---------------------------------------------------------------- checks of values: the mistake and the remedy; None for none

_WhatAndRemedy = tuple[str, str] | None


def _is(good: Callable[[Any], object], what: str, remedy: str = "") -> Callable[[object], _WhatAndRemedy]:
    """Return a check of a value: ``what`` is said of one that is not ``good``, and of one for which that raises.

    Without a ``remedy`` what was raised tells it.
    """

    def check(value: object) -> _WhatAndRemedy:
        try:
            return None if good(value) else (f"{value!r:.60} {what}", remedy)
        except HalfmoonError as exc:
            return f"{value!r:.60} {what}", remedy or str(exc)

    return check


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _database(value: object) -> _WhatAndRemedy:
    if value in list(connections):
        return None
    return f"there is no database {value!r:.60}", f"use one of DATABASES: {', '.join(connections)}"


def _topics(value: object) -> _WhatAndRemedy:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Collection):
        return f"{value!r:.60} is no list", "write a list of topics, or leave it out for any"
    try:
        for topic in value:
            check_name("topic", topic)
    except HalfmoonError as exc:
        return "a name is none of a topic", str(exc)
    return None


def _modules(value: object) -> _WhatAndRemedy:
    if isinstance(value, str) or not isinstance(value, Collection) or not all(isinstance(module, str) for module in value):
        return f"{value!r:.60} is no list of modules", 'write a list, such as ["shop.consumers"]'
    for module in value:
        try:
            if find_spec(module) is not None:
                continue
        except (ImportError, ValueError):
            pass
        return f"there is no module {module!r:.60}", "write its full name, as in an import"
    return None


def _relay(value: object) -> _WhatAndRemedy:
    if not isinstance(value, Mapping):
        return (
            None if isinstance(value, bool) else (f"{value!r:.60} is no setting", "write True, False or a dict of relay settings")
        )
    known = [name.name for name in fields(RelaySettings)]
    if unknown := [name for name in value if name not in known]:
        return f"{unknown[0]!r:.60} is no setting of a relay", f"known are {', '.join(known)}"
    try:
        RelaySettings(**value)
    except HalfmoonError as exc:
        return "a setting of the relay is wrong", str(exc)
    return None


def _thing(value: object) -> _WhatAndRemedy:
    try:
        named(value)
    except ImportError as exc:
        return f"{value!r:.60} cannot be imported: {exc}", "write package.module.name"
    return None


_flag = _is(lambda value: isinstance(value, bool), "is neither True nor False", "write one of them")
_number = _is(_is_number, "is not a number", "write a whole number, 0 or more")
_options = _is(
    lambda value: isinstance(value, Mapping) and all(isinstance(name, str) for name in value),
    "is no dict of settings",
    "write their names and values",
)

_KINDS = {
    "group": _is(lambda value: check_name("group", value), "is no name of a group"),
    "nameserver": _is(
        lambda value: isinstance(value, str) and split_addresses(value), "is no address", "write host:port, several joined by ';'"
    ),
    "default": _is(lambda value: value in (None, "plain", "transactional"), "is not known", "use 'plain' or 'transactional'"),
    "mode": _is(lambda value: value in MODES, "is not known", f"use {' or '.join(map(repr, MODES))}"),
    "database": _database,
    "topics": _topics,
    "consumers": _modules,
    "checks": _modules,
    "relay": _relay,
    **dict.fromkeys(("start", "strict", "notify", "raise_on_failure"), _flag),
    **dict.fromkeys(("tries_max", "timeout_ms"), _number),
    "check_after_s": lambda value: None if value is None else _number(value),
    **dict.fromkeys(("transport", "codecs"), _thing),
    **dict.fromkeys(("settings", "consumer_settings"), _options),
}
_KEYS: dict[str, Callable[[object], _WhatAndRemedy]] = {
    field.name.upper(): _KINDS[field.name] for field in fields(ProjectConfiguration)
}
