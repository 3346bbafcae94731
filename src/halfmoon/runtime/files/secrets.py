"""Reading of files with secrets, by one rule: a file that other users may use is refused (`halfmoon.settings.private`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from halfmoon.errors import SettingError
from halfmoon.settings.private import exposed, is_refused

SECRET_BYTES_MAX = 64 * 1024


def read_secret(path: Path, what: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the text of a file that holds ``what``. Raises SettingError: unreadable, too long, or open to other users."""
    try:
        with path.open("rb") as file:
            data = file.read(SECRET_BYTES_MAX + 1)
            mode = os.fstat(file.fileno()).st_mode
        text = data.decode()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingError(f"{path}: {what} cannot be read: {getattr(exc, 'strerror', None) or 'it is not UTF-8'}") from None
    if len(data) > SECRET_BYTES_MAX:
        raise SettingError(f"{path}: a file with {what} has at most {SECRET_BYTES_MAX} bytes")
    if is_refused(mode, environment):
        raise SettingError(exposed(path, what))
    return text


def check_private(path: Path, what: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raise SettingError for a file with secrets that is open to other users. A missing one is left to its reader."""
    with suppress(OSError):
        if is_refused(path.stat().st_mode, environment):
            raise SettingError(exposed(path, what))
