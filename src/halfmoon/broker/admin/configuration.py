"""Settings that a running broker is told to change (25); saved as ``config/broker.properties``, which outlives a restart.

Only those of `CHANGEABLE` can be changed: they take effect at once, and none is a path, a secret, an address or a command.
Follows AdminBrokerProcessor.updateBrokerConfig and Configuration (RocketMQ 4.9.8).
Differs: the original takes any key of its configuration classes, ignores unknown keys and bad values without a word, and writes all
settings over the file that it was started with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from halfmoon.broker.context import Context
from halfmoon.broker.names import TEMPLATE_TOPIC
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.saving import saves
from halfmoon.broker.service import Service
from halfmoon.broker.settings import CHANGEABLE, BrokerSettings
from halfmoon.errors import BrokerError, NoPermission, SettingError
from halfmoon.instant import Instant, Steady
from halfmoon.settings import Loaded, describe, load, overwrite, properties_text
from halfmoon.settings.java_keys import PLACES
from halfmoon.settings.properties import parse_properties
from halfmoon.wire.bodies import BadBody, DataVersion
from halfmoon.wire.headers.admin import UpdateBrokerConfig

log = logging.getLogger("halfmoon.broker")

PATH = "config/broker.properties"

TEXT_BYTES_MAX = 64 * 1024
"""Longest text of settings to change; all that there are, with their longest values, take a quarter."""

BLACK_LIST = frozenset({"configBlackList", "brokerConfigPath", "rocketmqHome"})


class _Change(NamedTuple):
    """Changes that a text asks for: settings of both tables, the names that differ by table, and RocketMQ's keys without effect."""

    loaded: Loaded
    differing: dict[str, list[str]]

    def fixed(self) -> list[str]:
        """Return the keys of settings that differ and can only be set at the start."""
        return [
            _keys(self.loaded.values[table])[name]
            for table, names in self.differing.items()
            for name in names
            if name not in CHANGEABLE[table]
        ]

    def texts(self) -> dict[str, str]:
        """Return the changed values as texts, by key."""
        every = dict(line.split("=", 1) for line in properties_text(*self.loaded.values.values()).splitlines())
        keys = [_keys(self.loaded.values[table])[name] for table, names in self.differing.items() for name in names]
        return {key: every[key] for key in sorted(keys)}


class Configuration(Service):
    """The service that answers 25. It alone writes to the settings of its broker, which are the broker's own copies."""

    def __init__(self, context: Context) -> None:
        """Read what was changed before the last stop, and let it apply. Raises StoreError where that cannot be read."""
        self._tables: dict[str, Any] = {"broker": context.settings, "store": context.store.settings}
        self._topics = context.topics
        self.on_change: Callable[[Steady], None] = lambda now: None
        """Called with the time when settings were changed."""
        self.version = DataVersion(timestamp=context.started.date)
        self._changed: dict[str, str] = {}
        """Values that were changed since the first start, by key."""
        saved = context.tables.load(PATH, self._read)
        if saved is not None:
            self._apply(saved)
            self._topics.predefine(context.started.date)
            text = "settings changed by command apply, over those of files and flags (%s): %s"
            log.warning(text, PATH, _lines(self._changed, ", "))
        self._mark_changed = context.tables.add(PATH, lambda: (_lines(self._changed, "\n") + "\n").encode())

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {UpdateBrokerConfig: self.update}

    @saves(PATH)
    def update(self, request: Request) -> Reply:
        """Change settings (25): all that the text names, or none. RocketMQ's keys without a meaning here are named in the remark.

        Raises:
            NoPermission: a key on the black list.
            BrokerError: an unknown key, a value that does not fit, or a setting that is fixed at the start; named.
            SystemBusy: sends are to make topics, and there is no room for their template.
        """
        if len(request.command.body) > TEXT_BYTES_MAX:
            raise BrokerError(f"settings of {len(request.command.body)} bytes are longer than {TEXT_BYTES_MAX}")
        try:
            text = str(request.command.body, "utf-8")
            keys = {key for _, key, _ in parse_properties(text)}
            change = self._read_change(text, "update")
        except UnicodeDecodeError:
            raise BrokerError("the body is not UTF-8 text") from None
        except SettingError as exc:
            raise BrokerError(str(exc)) from None
        if forbidden := BLACK_LIST & keys:
            raise NoPermission(f"Can not update config in black list: {', '.join(sorted(forbidden))}")
        if fixed := sorted({*change.fixed(), *(PLACES.keys() & keys)}):
            raise BrokerError(f"can only be set at the start: {', '.join(fixed)}")
        wanted: BrokerSettings = change.loaded.values["broker"]
        if wanted.auto_create_topics:  # for the template, which a start without that permission left out
            self._topics.check_room([TEMPLATE_TOPIC], wanted.topics_max)
        if any(change.differing.values()):
            self._apply(change)
            self._mark_changed()
            self._took_effect(change, request.now)
            log.warning("settings are changed, as %s asks: %s", request.peer.remote, _lines(change.texts(), ", "))
        without = [f"{ignored.key}: {ignored.reason}" for ignored in change.loaded.ignored]
        return Reply(0, f"without effect here: {'; '.join(without)}" if without else None)

    def _apply(self, change: _Change) -> None:
        for table, names in change.differing.items():
            if names:
                overwrite(self._tables[table], change.loaded.values[table])
        self._changed |= change.texts()

    def _took_effect(self, change: _Change, now: Instant) -> None:
        """Let go what was derived from the settings, and do what a start with them does."""
        self.version = self.version.next(now.date)
        self._topics.predefine(now.date)
        self._topics.settings_changed(now.date, announced="permission" in change.differing["broker"])
        self.on_change(now.steady)

    def _read(self, data: bytes) -> _Change:
        try:
            text = str(data, "utf-8")
            change = self._read_change(text, PATH)
            self._changed = {key: value for _, key, value in parse_properties(text)}  # also what files and flags say now
        except (SettingError, UnicodeDecodeError) as exc:
            raise BadBody(str(exc)) from None
        if fixed := change.fixed():
            raise BadBody(f"can only be set at the start: {', '.join(fixed)}")
        return change

    def _read_change(self, text: str, source: str) -> _Change:
        sections = {table: type(settings) for table, settings in self._tables.items()}
        loaded = load(sections, files=[(source, text)], base=self._tables)
        differing = {
            table: [name for name in _keys(settings) if getattr(settings, name) != getattr(loaded.values[table], name)]
            for table, settings in self._tables.items()
        }
        return _Change(loaded, differing)


def _keys(settings: Any) -> dict[str, str]:
    """Return RocketMQ's key of each setting, or its name where it has none, by name."""
    return {each.name: each.java or each.name for each in describe(type(settings))}


def _lines(texts: dict[str, str], between: str) -> str:
    return between.join(f"{key}={value}" for key, value in sorted(texts.items()))
