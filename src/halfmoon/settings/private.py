"""Files with secrets: refused if other users may read or change them, unless a setting allows it. Opens no file.

The rule for the broker's accounts, for credentials and for the console's database. A mode that lets a group in counts as well:
nothing says who is in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from halfmoon.documentation import see

VARIABLE = "HALFMOON_SECRETS_READABLE_BY_OTHERS"
"""Variable that, set to true, allows such files of credentials, and such a database of the console."""


def is_private(mode: int) -> bool:
    """Whether nobody but its owner may use a file with this mode."""
    return mode & 0o077 == 0


def exposed(name: object, what: str, setting: str = f"{VARIABLE}=true") -> str:
    """Return the reason why a file is refused, and the remedy."""
    return f"{name}: other users may read or change {what}: close it with chmod 600, or set {setting} ({see('access')})"


def is_refused(mode: int, environment: Mapping[str, str]) -> bool:
    """Whether a file with secrets and this mode is refused, by a process with these variables."""
    return not is_private(mode) and environment.get(VARIABLE, "").strip().lower() != "true"
