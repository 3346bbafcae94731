"""The directory of a pair's member outside of its pair: no plain broker starts on it before ``--leave-pair`` has made it one."""

from __future__ import annotations

from pathlib import Path

from halfmoon.broker.pairs.lease import Lease
from halfmoon.documentation import see
from halfmoon.errors import UsageError
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.resources.directory import random_source
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.files.permissions import PERMISSIONS
from halfmoon.store.epochs import PATH, Epochs, pair_of
from halfmoon.store.layout import LOCK


def alone(disk: RealDisk, lease: Lease | None) -> RealDisk:
    """Return the disk of a broker. Without a lease it must not be that of a pair's member.

    The other one could take over, and hide what is stored here alone. Raises UsageError.
    """
    if lease is None and (found := pair_of(disk)) is not None:
        raise UsageError(
            f"this directory belongs to a pair (broker {found.broker}, epoch {found.epoch}): start it with --lease; or, to leave"
            f" the pair for good, with --leave-pair ({see('pairs')})"
        )
    return disk


def leave_pair(settings: ServerSettings, data: Path) -> None:
    """Make the directory of a pair's member that of a plain broker. Does nothing to another one. Waits for the disk.

    Raises StoreLocked: a process has the directory. StoreError, OSError.
    """
    if not (data / PATH).exists():
        return
    disk = RealDisk(data, PERMISSIONS[settings.store.readable_by])
    lock = disk.lock(LOCK)
    try:
        Epochs.load(disk, random_source()).leave_pair()
    finally:
        lock.release()
