"""Settings that running servers answer with, and what Halfmoon knows of each: default, reason, whether it can be set any time.

Of Apache's servers only the values are known. Pure functions; ``of`` is broker or nameserver.
"""

from __future__ import annotations

from typing import Any

from halfmoon.programs.configuration import BROKER, CHANGEABLE, NAME_SERVER
from halfmoon.settings import describe
from halfmoon.settings.java_keys import IGNORED

OF_THE_MACHINE = frozenset(("memory_bytes", "processors"))
"""Settings whose default stands for what the machine has, with which servers answer: what that is here is not known."""


def known_settings(of: str) -> dict[str, dict[str, Any]]:
    """Return what is known of the settings of Halfmoon's servers, by the key that stands in their answers."""
    sections = {"broker": BROKER["broker"], "store": BROKER["store"]} if of == "broker" else {of: NAME_SERVER[of]}
    return {
        each.java or each.name: {
            "name": each.name, "default": None if each.name in OF_THE_MACHINE else each.default,
            "set": "any time" if each.name in CHANGEABLE[section] else "at start", "reason": each.why, "java": each.java,
        }
        for section, cls in sections.items()
        for each in describe(cls)
    }  # fmt: skip


def is_ours(of: str, settings: dict[str, str]) -> bool:
    """Whether settings are those of a Halfmoon server: RocketMQ has some of them not."""
    return any(key in settings for key, each in known_settings(of).items() if each["java"] is None)


def setting_rows(of: str, settings: dict[str, str]) -> list[dict[str, Any]]:
    """Return a row for each setting, by key: value, what is known of it, and whether it is not the default."""
    described = known_settings(of) if is_ours(of, settings) else {}
    nothing = dict.fromkeys(("name", "default", "set", "reason"))
    found = [{"setting": key, "value": value, **described.get(key, nothing)} for key, value in sorted(settings.items())]
    return [{**row, "changed": row["default"] not in (None, row["value"])} for row in found]


def without_effect(of: str, values: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """Return which values a server was told in vain, each with the reason, by the settings that it answers with afterwards."""
    ours = is_ours(of, after)
    without = {
        key: IGNORED.get(key, "as it always is here") if ours else "it has no such setting" for key in values if key not in after
    }
    if not ours:  # ours write a value in their own way, or refuse it
        differing = {key for key in values.keys() & after if after[key].lower() != values[key].lower()}
        without |= {key: f"it is {after[key]}" for key in sorted(differing)}
    return without
