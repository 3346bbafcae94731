"""`SpareSpace`: disk space kept for a start on a full disk: given up so that the store opens for reading, and taken again later."""

from __future__ import annotations

import logging
from errno import EDQUOT, ENOSPC

from halfmoon.ports import Disk
from halfmoon.store.layout import SPARE

log = logging.getLogger("halfmoon.store")

SPARE_BYTES = 1024 * 1024
"""Room for the writes of a start: marks, tables of a few KB, first pages of files that are created again, zeros behind the ends of
queues that a kill left unfinished, up to 64 KiB each."""


def is_full(error: OSError) -> bool:
    """Whether an error says that the disk has no room."""
    return error.errno in (ENOSPC, EDQUOT)


class SpareSpace:
    """The file that holds the room."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.there = False

    def give_up(self, error: OSError) -> bool:
        """Let go of the room because of an error, and say so; return whether there was any."""
        if not is_full(error) or not self._disk.exists(SPARE):
            return False
        self._disk.remove(SPARE)
        self.there = False
        log.error("the disk is full; the %d bytes held in %s are used to start, for reading only: %s", SPARE_BYTES, SPARE, error)
        return True

    def take(self) -> str | None:
        """Hold the room unless it is held; return why nothing may be written, None: it is held."""
        if not self.there:
            try:
                if not self._disk.exists(SPARE) or self._disk.file_size(SPARE) != SPARE_BYTES:
                    file = self._disk.create(SPARE, SPARE_BYTES)
                    try:
                        file.write(SPARE_BYTES - 1, b"\0")  # which takes the room of all before it
                    except OSError:
                        self._disk.remove(SPARE)
                        raise
                    finally:
                        file.close()
            except OSError as exc:
                return f"the disk is full: there is no room for {SPARE}" if is_full(exc) else f"{SPARE} cannot be made: {exc}"
            self.there = True
        return None
