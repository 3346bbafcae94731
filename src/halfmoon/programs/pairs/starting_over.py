"""`StartingOver`: what ``--resync`` does for one slave: where its copy cannot go on, it is kept aside, and everything copied again.

Decides nothing about copies: `halfmoon.broker.copies.standby` finds that one cannot go on. Without ``--resync`` it only says so.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from pathlib import Path

from halfmoon.broker.copies.standby import RESYNC, Standby
from halfmoon.programs.configuration import ServerSettings
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.files.permissions import PERMISSIONS
from halfmoon.store.layout import STARTING_OVER
from halfmoon.store.log.earlier_copy import EarlierCopy, finish, refusal, set_aside

KEPT = "--resync does not start over a member that may be the master"


class StartingOver:
    """The directory of a slave, and whether ``--resync`` was given."""

    def __init__(self, settings: ServerSettings, data: Path, *, wanted: bool) -> None:
        self._data, self._permissions, self._wanted = data, PERMISSIONS[settings.store.readable_by], wanted

    @cached_property
    def _disk(self) -> RealDisk:
        return RealDisk(self._data, self._permissions)

    def begin(self) -> None:
        """Finish what a killed process has begun, before anything opens the directory. Waits for the device.

        Raises as `halfmoon.store.log.earlier_copy.finish`.
        """
        if (self._data / STARTING_OVER).exists():
            finish(self._disk)

    def is_due(self, core: Standby, *, may: bool = True) -> bool:
        """Return whether a slave is to start over; have it say why not. ``may``: it is no member that may be the master."""
        why = RESYNC if not self._wanted else KEPT if not may else refusal(self._disk)
        core.remedy = why or "it starts over"
        return why is None and core.outdated is not None

    async def run(self, reason: str) -> EarlierCopy:
        """Move the copy of a slave that is closed aside; a stop waits for it.

        Raises as `halfmoon.store.log.earlier_copy.set_aside`.
        """
        moving = asyncio.ensure_future(asyncio.to_thread(set_aside, self._disk, reason))
        try:
            return await asyncio.shield(moving)
        except asyncio.CancelledError:
            await asyncio.wait([moving])
            raise
