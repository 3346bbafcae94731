"""Files of clients: the progress of a broadcasting consumer, which is replaced whole, and files with secrets, for commands.

Their content is for the caller to check.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from halfmoon.errors import PeerError
from halfmoon.runtime.files.permissions import make_directory, open_new
from halfmoon.runtime.files.secrets import check_private, read_secret

__all__ = ["OffsetsOnDisk", "check_private", "read_secret"]

_MISSING, _EMPTY = "is missing", "is empty"

log = logging.getLogger("halfmoon.client")


class OffsetsOnDisk:
    """``<directory>/<client id>/<group>/offsets.json`` with the previous version beside it. Follows LocalFileOffsetStore.

    ``check`` raises PeerError for content that is damaged.
    """

    def __init__(self, directory: str, client_id: str, group: str, check: Callable[[bytes], object] = bytes) -> None:
        root = Path(directory) if directory else Path.home() / ".rocketmq_offsets"
        self.path = root / client_id.replace(os.sep, "_") / group / "offsets.json"
        self._backup = self.path.with_suffix(".json.bak")
        self._check = check
        self._lock = threading.Lock()

    def load(self) -> bytes | None:
        """Return the content, that of the backup when it is missing, empty or damaged, or None.

        Raises PeerError: what is there is damaged.
        """
        reasons: list[str] = []
        for path in (self.path, self._backup):
            data = self._whole(path, reasons)
            if data is None:
                continue
            if path != self.path:
                log.warning("%s: using the older copy %s, later progress is lost", reasons[0], path)
                if self.path.exists():  # the next save would put it in the place of the good copy
                    os.replace(self.path, self.path.with_suffix(".json.damaged"))
            return data
        if damaged := [reason for reason in reasons if not reason.endswith((_MISSING, _EMPTY))]:
            raise PeerError(
                f"saved offsets cannot be read: {'; '.join(damaged)}. Put back a copy of {self.path}, or remove it and "
                f"{self._backup} to begin as a new group"
            )
        return None

    def _whole(self, path: Path, reasons: list[str]) -> bytes | None:
        """Return what a file holds, or None and add why it is of no use."""
        try:
            data = path.read_bytes()
            if data.strip():
                self._check(data)
                return data
            reasons.append(f"{path} {_EMPTY}")
        except FileNotFoundError:
            reasons.append(f"{path} {_MISSING}")
        except PeerError as exc:
            reasons.append(f"{path}: {exc}")
        return None

    def save(self, data: bytes) -> None:
        """Replace the content so that a crash leaves the old or the new, and keep the old as a backup.

        A save that nobody waits for any more, its caller being cancelled, may still run when the next one comes.
        """
        with self._lock:
            self._replace(data)

    def _replace(self, data: bytes) -> None:
        make_directory(self.path.parent)
        temporary = self.path.with_suffix(".json.tmp")
        temporary.unlink(missing_ok=True)
        with open(open_new(temporary, os.O_WRONLY), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            os.replace(self.path, self._backup)
        os.replace(temporary, self.path)
