"""Settings explain themselves: one field with default, unit in its name, Java key and reason.

A settings class is a frozen dataclass whose fields are made by `setting`; files, environment, flags, ``--help`` and the
reference page are derived from it. Nothing here opens a file: the shell hands in text.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any


def setting(default: Any, *, java: str | None = None, why: str, low: float | None = None, high: float | None = None) -> Any:
    """Declare one setting: its default, RocketMQ's own key where there is one, its reason, and bounds of numbers (inclusive)."""
    return field(default=default, metadata={"java": java, "why": why, "low": low, "high": high})
