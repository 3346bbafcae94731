"""Settings: one field each, with default, unit in its name, Java key and reason.

A settings class is a frozen dataclass whose fields are made by `setting`; files, environment, flags, ``--help`` and the
reference page are derived from it. Nothing here opens a file or reads the environment: the runtime hands in text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from difflib import get_close_matches
from enum import Enum
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from halfmoon.errors import SettingError
from halfmoon.settings.forms import Form
from halfmoon.settings.java_keys import IGNORED, REFUSED
from halfmoon.settings.properties import parse_properties

T = TypeVar("T")
Sections = Mapping[str, type[Any]]
"""Settings classes by the name of their table in a TOML file: ``{"broker": BrokerSettings, "store": StoreSettings}``."""

ENVIRONMENT_PREFIX = "HALFMOON_"
NOT_SETTINGS = frozenset({
    "HALFMOON_DATA", "HALFMOON_CONFIG", "HALFMOON_PURE", "HALFMOON_NATIVE", "HALFMOON_INTEROP_TARGET", "HALFMOON_DATABASE",
    "HALFMOON_ACCESS_KEY", "HALFMOON_SECRET_KEY", "HALFMOON_SECURITY_TOKEN", "HALFMOON_CREDENTIALS", "HALFMOON_CONTEXT",
    "HALFMOON_SECRETS_READABLE_BY_OTHERS",
    "HALFMOON_TLS", "HALFMOON_TLS_CA", "HALFMOON_TLS_CERT", "HALFMOON_TLS_KEY", "HALFMOON_TLS_KEY_PASSWORD", "HALFMOON_TLS_VERIFY",
    "HALFMOON_TLS_SERVER_NAME",
})  # fmt: skip
"""Variables with our prefix that are read by others than a settings class."""

MASK = "******"
"""Text that is shown instead of a secret."""

TEXT_LENGTH_MAX = 4096
"""Longest text value, in characters: a list of a hundred addresses has room, and a log line can show it."""


def setting(
    default: Any,
    *,
    java: str | None = None,
    why: str,
    low: int | None = None,
    high: int | None = None,
    choices: Sequence[str] | None = None,
    form: Form | None = None,
    secret: bool = False,
    agreed: bool = False,
) -> Any:
    """Declare one setting: its default, RocketMQ's own key where there is one, its reason, and what values fit.

    ``low`` and ``high`` bound a number (inclusive); ``choices`` are the texts allowed, compared without regard to case.
    ``form`` is what a text must look like (`halfmoon.settings.forms`). What is ``secret`` is masked wherever settings are shown.
    Both members of a pair must have the same value of what is ``agreed``.
    The default None (the field is of type ``bool | None`` or so) stands for what was not given, where that makes a difference.
    """
    facts = {"java": java, "why": why, "low": low, "high": high, "choices": choices, "form": form, "secret": secret}
    return field(default=default, metadata={**facts, "agreed": agreed}, repr=not secret)


class Described(NamedTuple):
    """One setting as a reference page or ``--help`` shows it."""

    name: str
    java: str | None
    kind: str
    default: str
    allowed: str
    why: str


class Ignored(NamedTuple):
    """RocketMQ key that was given and has no effect here, with the reason."""

    key: str
    source: str
    reason: str
    value: str = ""


class Loaded(NamedTuple):
    """Settings of every section, and the RocketMQ keys that were given without effect (to be logged)."""

    values: dict[str, Any]
    ignored: list[Ignored]
    secret_files: Sequence[str] = ()
    """Files that set a secret."""

    def of(self, cls: type[T]) -> T:
        """Return the settings of one class."""
        for value in self.values.values():
            if isinstance(value, cls):
                return value
        raise KeyError(cls.__name__)


# ---------------------------------------------------------------- loading


def load(
    sections: Sections,
    *,
    files: Iterable[tuple[str, str]] = (),
    environment: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
    java_sections: Sequence[str] | None = None,
    others: Sections | None = None,
    base: Mapping[str, Any] | None = None,
) -> Loaded:
    """Return settings from files, then the environment, then ``key=value`` assignments; what comes later wins.

    ``files`` are pairs of name and text: TOML when the name ends so, else Java properties as in a ``broker.conf``. A key is our
    name, our name after its section (``broker.port``), or RocketMQ's key, which sets every section of ``java_sections`` (default:
    all) that has it. An environment variable is ``HALFMOON_PORT`` or ``HALFMOON_BROKER_PORT``. ``others`` are sections of other
    programs, whose tables and variables are left alone. ``base`` are settings to start from instead of the defaults.

    Raises:
        SettingError: an unknown key, named with the nearest right one; a value of the wrong type or out of bounds; a RocketMQ key
            whose value asks for something not built.
    """
    loading = _SettingsCollector(sections, java_sections, others or {}, base or {})
    secret_files = []
    for name, text in files:
        loading.has_secrets = False
        (loading.toml if name.endswith(".toml") else loading.properties)(name, text)
        if loading.has_secrets:
            secret_files.append(name)
    loading.environment(environment or {})
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise SettingError(f"not of the form key=value: {assignment!r}")
        loading.assign(key.strip(), value.strip(), "command line", java_file=False)
    return loading.loaded()._replace(secret_files=secret_files)


def change(current: T, properties: str, source: str) -> tuple[T, list[Ignored]]:
    """Return settings with the Java properties text applied, as a running server is told to. Raises SettingError."""
    loaded = load({"": type(current)}, files=[(source, properties)], base={"": current})
    return loaded.of(type(current)), loaded.ignored


def overwrite(shared: T, values: T) -> None:
    """Copy the values of another settings value of its class; all holders see them. Only its owner may do so."""
    for each in fields(type(shared)):  # type: ignore[arg-type]  # a dataclass
        object.__setattr__(shared, each.name, getattr(values, each.name))


def value_of(cls: type[Any], name: str, text: str, source: str) -> Any:
    """Return the value of a text as a setting of a class. Raises SettingError, which names ``source``."""
    return _value_of(name, _declared(cls)[name], text, source)


def check(settings: T) -> T:
    """Return settings that were built by hand, once every value is known to have its type and to fit. Raises SettingError."""
    for name, setting in _declared(type(settings)).items():
        if not _fits(setting, value := getattr(settings, name)):
            raise SettingError(_refusal(setting, f"{type(settings).__name__}: {name}", value))
    return settings


class _Setting(NamedTuple):
    kind: Any
    default: Any
    java: str | None
    why: str
    low: int | None
    high: int | None
    form: Form | None
    secret: bool
    agreed: bool
    choices: Mapping[str, Any]
    """Allowed values, by name: texts, or the members of an enumeration. Empty: any value that fits."""


_DECLARED: dict[type[Any], dict[str, _Setting]] = {}


def _declared(cls: type[Any]) -> dict[str, _Setting]:
    """Return the settings of a class, by name; read once, as evaluating annotations is slow."""
    if cls not in _DECLARED:
        kinds = get_type_hints(cls)
        _DECLARED[cls] = {each.name: _setting_of(kinds[each.name], each.default, **each.metadata) for each in fields(cls)}
    return _DECLARED[cls]


def _setting_of(kind: Any, default: Any, choices: Sequence[str] | None, **facts: Any) -> _Setting:
    if isinstance(kind, UnionType):
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    is_enumeration = isinstance(kind, type) and issubclass(kind, Enum)
    return _Setting(kind, default, choices=kind.__members__ if is_enumeration else {text: text for text in choices or ()}, **facts)


class _SettingsCollector:
    """Collector of values by section, until all sources are read."""

    def __init__(self, sections: Sections, java_sections: Sequence[str] | None, others: Sections, base: Mapping[str, Any]) -> None:
        self._sections, self._others, self._base = sections, others, base
        self._values: dict[str, dict[str, Any]] = {name: {} for name in sections}
        self._ignored: list[Ignored] = []
        self.has_secrets = False
        """Whether a secret was assigned."""
        self._by_name: dict[str, list[str]] = {}
        self._by_java: dict[str, list[tuple[str, str]]] = {}
        for section, cls in sections.items():
            for name, each in _declared(cls).items():
                self._by_name.setdefault(name, []).append(section)
                if each.java and (java_sections is None or section in java_sections):
                    self._by_java.setdefault(each.java, []).append((section, name))

    def toml(self, source: str, text: str) -> None:
        try:
            tables = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as exc:
            raise SettingError(f"{source}: not TOML: {exc}") from None
        for key, value in tables.items():
            if not isinstance(value, dict):
                self.assign(key, value, source, java_file=False)
            elif key in self._sections:
                for name, inner in value.items():
                    self.assign(f"{key}.{name}", inner, source, java_file=False)
            elif key not in self._others:
                raise SettingError(f"{source}: unknown table [{key}]{_nearest(key, [*self._sections, *self._others])}")

    def properties(self, source: str, text: str) -> None:
        for line, key, value in parse_properties(text):
            self.assign(key, value, f"{source}:{line}", java_file=True)

    def environment(self, variables: Mapping[str, str]) -> None:
        known = {ENVIRONMENT_PREFIX + name.upper(): name for name in self._by_name}
        for section, cls in self._sections.items():
            known |= {f"{ENVIRONMENT_PREFIX}{section}_{name}".upper(): f"{section}.{name}" for name in _declared(cls)}
        foreign = set(NOT_SETTINGS)
        for section, cls in self._others.items():
            for name in _declared(cls):
                foreign |= {f"{ENVIRONMENT_PREFIX}{name}".upper(), f"{ENVIRONMENT_PREFIX}{section}_{name}".upper()}
        for variable, value in sorted(variables.items()):
            if not variable.startswith(ENVIRONMENT_PREFIX):
                continue
            if variable in known:
                self.assign(known[variable], value, variable, java_file=False)
            elif variable not in foreign:
                raise SettingError(f"unknown setting in the environment: {variable}{_nearest(variable, known)}")

    def assign(self, key: str, value: Any, source: str, *, java_file: bool) -> None:
        places = self._places(key, source)
        for section, name in places:
            setting = _declared(self._sections[section])[name]
            self._values[section][name] = _value_of(key, setting, value, source)
            self.has_secrets |= setting.secret and bool(value)
        if not places:
            self._without_place(key, value, source, java_file=java_file)

    def _places(self, key: str, source: str) -> list[tuple[str, str]]:
        if "." in key and key in self._by_java:  # tls.server.mode, though there is a section tls
            return self._by_java[key]
        section, dot, name = key.partition(".")
        if dot and section in self._sections:
            if name in _declared(self._sections[section]):
                return [(section, name)]
            return [place for place in self._by_java.get(name, []) if place[0] == section]
        if key in self._by_java:
            return self._by_java[key]
        holders = self._by_name.get(key, [])
        if len(holders) > 1:
            ways = " or ".join(f"{holder}.{key}" for holder in holders)
            raise SettingError(f"{source}: {key!r} is a setting of {' and '.join(holders)}: write {ways}")
        return [(holder, key) for holder in holders]

    def _without_place(self, key: str, value: Any, source: str, *, java_file: bool) -> None:
        bare = key.rpartition(".")[2]
        if bare in REFUSED:
            allowed, reason = REFUSED[bare]
            if str(value).strip().lower() not in allowed:
                raise SettingError(f"{source}: {bare}={value}: {reason} (allowed: {' or '.join(sorted(allowed))})")
            self._ignored.append(Ignored(bare, source, "as it always is here"))
        elif bare in IGNORED and java_file:
            self._ignored.append(Ignored(bare, source, IGNORED[bare], str(value).strip()))
        else:
            if bare in IGNORED:
                raise SettingError(f"{source}: RocketMQ's setting {bare!r} has no effect here: {IGNORED[bare]}")
            raise SettingError(f"{source}: unknown setting {key!r}{_nearest(bare, [*self._by_java, *self._by_name])}")

    def loaded(self) -> Loaded:
        values = {}
        for section, cls in self._sections.items():
            start = self._base.get(section)
            values[section] = cls(**self._values[section]) if start is None else replace(start, **self._values[section])
        return Loaded(values, self._ignored)


def _nearest(key: str, known: Iterable[str]) -> str:
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(key.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


# ---------------------------------------------------------------- values


_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_BOOLEANS = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}


def _value_of(key: str, setting: _Setting, given: Any, source: str) -> Any:
    """Return the value that is given, as itself or as a text, in the setting's type. Raises SettingError."""
    value = _from_text(setting, given) if isinstance(given, str) else given
    if not _fits(setting, value):
        raise SettingError(_refusal(setting, f"{source}: {key}", given))
    return value


def _refusal(setting: _Setting, place: str, given: Any) -> str:
    if setting.secret:
        return f"{place}: must be {_expected(setting)}"
    return f"{place} = {given!r:.200}: must be {_expected(setting)}{_nearest(str(given), setting.choices)}"


def _from_text(setting: _Setting, text: str) -> Any:
    """Return the value of a text, or the text itself if it is not of the setting's type."""
    word = text.strip()
    if setting.kind is bool:
        return _BOOLEANS.get(word.lower(), text)
    if setting.kind is int:
        return int(word) if _NUMBER.fullmatch(word) else text
    return {name.lower(): value for name, value in setting.choices.items()}.get(word.lower(), text)


def _fits(setting: _Setting, value: Any) -> bool:
    """Whether a value has the setting's type and is within its bounds."""
    if value is None:
        return setting.default is None
    if get_origin(setting.kind) is tuple:
        return isinstance(value, tuple) and all(type(item) is int for item in value)
    if not isinstance(value, setting.kind) or isinstance(value, bool) is not (setting.kind is bool):  # True is an int to Python
        return False
    if setting.kind is int:
        return (setting.low is None or value >= setting.low) and (setting.high is None or value <= setting.high)
    if setting.choices:
        return value in setting.choices.values()
    return not isinstance(value, str) or (_is_line(value) and (setting.form is None or bool(setting.form.fits(value))))


def _is_line(text: str) -> bool:
    return len(text) <= TEXT_LENGTH_MAX and all(32 <= ord(character) != 127 for character in text)


def _expected(setting: _Setting) -> str:
    """Return a description of the allowed values, which ends the sentence *must be …*."""
    if setting.choices:
        return f"one of {', '.join(setting.choices)}"
    if setting.form is not None:
        return setting.form.what
    if setting.kind is int:
        return ", ".join(filter(None, ("a whole number", _range(setting))))
    return {bool: "true or false", str: f"one line of at most {TEXT_LENGTH_MAX} characters"}.get(setting.kind, "whole numbers")


def _range(setting: _Setting) -> str:
    low, high = setting.low, setting.high
    if low is not None and high is not None:
        return f"{low} to {high}"
    return f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""


# ---------------------------------------------------------------- describing


def properties_text(*settings: Any) -> str:
    """Return settings as Java properties text, ``key=value`` lines sorted by key; RocketMQ's keys where there are any."""
    lines = {}
    for each in settings:
        for name, declared in _declared(type(each)).items():
            value = getattr(each, name)
            lines[declared.java or name] = MASK if declared.secret and value else _shown(value)
    return "".join(f"{key}={value}\n" for key, value in sorted(lines.items()))


def agreed(cls: type[Any]) -> list[str]:
    """Return the settings of a class that both members of a pair must have the same, as `properties_text` names them."""
    return [declared.java or name for name, declared in _declared(cls).items() if declared.agreed]


def describe(cls: type[Any]) -> list[Described]:
    """Return every setting of a class in the order of declaration."""
    return [
        Described(name, setting.java, _type_text(setting), _shown(setting.default), _allowed_text(setting), setting.why)
        for name, setting in _declared(cls).items()
    ]


def _type_text(setting: _Setting) -> str:
    if get_origin(setting.kind) is tuple:
        return "list"
    return {bool: "true or false", int: "whole number"}.get(setting.kind, "text")


def _allowed_text(setting: _Setting) -> str:
    if setting.choices:
        return ", ".join(setting.choices)
    return setting.form.what if setting.form is not None else _range(setting)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple):
        return ";".join(map(str, value))
    return "" if value is None else str(value)
