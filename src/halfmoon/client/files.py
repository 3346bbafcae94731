"""The file in which a broadcasting consumer keeps its progress. Replaces it whole; knows nothing of what it holds."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from halfmoon.runtime.files.permissions import make_directory, open_new


class OffsetsOnDisk:
    """``<directory>/<client id>/<group>/offsets.json`` with the previous version beside it. Follows LocalFileOffsetStore."""

    def __init__(self, directory: str, client_id: str, group: str) -> None:
        root = Path(directory) if directory else Path.home() / ".rocketmq_offsets"
        self.path = root / client_id.replace(os.sep, "_") / group / "offsets.json"
        self._lock = threading.Lock()

    def load(self) -> bytes | None:
        """Return the content, that of the backup when it is missing or empty, or None."""
        for path in (self.path, self.path.with_suffix(".json.bak")):
            try:
                if data := path.read_bytes():
                    return data
            except FileNotFoundError:
                continue
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
            os.replace(self.path, self.path.with_suffix(".json.bak"))
        os.replace(temporary, self.path)
