"""Default directories for data. Creates nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def data_home(environment: Mapping[str, str]) -> Path:
    """Return the directory for Halfmoon in the user's data directory (XDG)."""
    home = environment.get("XDG_DATA_HOME", "")
    return Path(home if os.path.isabs(home) else "~/.local/share").expanduser() / "halfmoon"


def console_directory(given: str | None, environment: Mapping[str, str]) -> Path:
    """Return the directory of the console's users and audit log.

    It is inside the data directory that `halfmoon serve` has with the same ``--data`` and environment, so that both use the same.
    """
    chosen = given or environment.get("HALFMOON_DATA")
    return (Path(chosen).expanduser() if chosen else data_home(environment)) / "console"
